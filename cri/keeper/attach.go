package keeper

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
)

// Stream is an attachment to the stdio of a running container. It ends when
// the container's output does, or when it is closed. Both outputs have to be
// read, as they share a connection; a Stream that is not read for too long is
// cut off, since it must not stall the container.
type Stream struct {
	Stdin          io.WriteCloser
	Stdout, Stderr io.Reader // Stderr stays empty with a terminal

	conn *net.UnixConn
	id   string
	once sync.Once
}

// Attach connects to the stdio of a running container. Several may be attached
// at once. Its output from before is in the log, not in the stream.
func (k *Keeper) Attach(ctx context.Context, containerID string) (*Stream, error) {
	var f fields
	f.str(tagID, containerID)
	c, _, files, err := k.peer.request(ctx, opAttach, f)
	if err != nil {
		return nil, fmt.Errorf("attach to container %s: %w", containerID, err)
	}
	closeAll(files)
	outR, outW := io.Pipe()
	errR, errW := io.Pipe()
	s := &Stream{Stdin: &stdin{conn: c}, Stdout: outR, Stderr: errR, conn: c, id: containerID}
	go func() {
		err := s.copy(outW, errW)
		_ = outW.CloseWithError(err)
		_ = errW.CloseWithError(err)
		c.Close()
	}()
	return s, nil
}

// copy hands each packet to its stream's reader. io.EOF ends it.
func (s *Stream) copy(stdout, stderr *io.PipeWriter) error {
	buf := make([]byte, headerSize+maxInline)
	for {
		m, files, err := receive(s.conn, buf)
		if err != nil {
			return io.EOF
		}
		closeAll(files)
		if m.op != opData {
			continue
		}
		w := stdout
		if m.flags == streamStderr {
			w = stderr
		}
		// A reader that closed its end wants no more of that stream only.
		_, _ = w.Write(m.data)
	}
}

// Resize sets the size of the container's terminal.
func (s *Stream) Resize(w, h uint16) error {
	var f fields
	f.str(tagID, s.id)
	f.u32(tagWidth, uint32(w))
	f.u32(tagHeight, uint32(h))
	if err := send(s.conn, opResize, f); err != nil {
		return fmt.Errorf("resize terminal: %w", gone(err))
	}
	return nil
}

// Close detaches. The container goes on; its stdin is closed when it was to be
// open once.
func (s *Stream) Close() error {
	s.once.Do(func() {
		s.conn.Close()
		if r, ok := s.Stdout.(*io.PipeReader); ok {
			r.Close()
		}
		if r, ok := s.Stderr.(*io.PipeReader); ok {
			r.Close()
		}
	})
	return nil
}

// stdin sends what is written to it in packets. A write blocks while the
// container does not read.
type stdin struct {
	conn *net.UnixConn
	mu   sync.Mutex
	done bool
}

func (s *stdin) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done {
		return 0, io.ErrClosedPipe
	}
	n := 0
	for len(p) > 0 {
		chunk := p[:min(len(p), 16<<10)]
		if err := send(s.conn, opData, chunk); err != nil {
			return n, gone(err)
		}
		n += len(chunk)
		p = p[len(chunk):]
	}
	return n, nil
}

// Close ends this attacher's input; what it is attached to stays attached.
func (s *stdin) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done {
		return nil
	}
	s.done = true
	return gone(send(s.conn, opStdinEOF, nil))
}
