// Package stdio runs commands in containers with the streams of a client, or with an output that is bounded.
package stdio

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"github.com/berth-node/berth/cri/keeper"
	"github.com/berth-node/berth/cri/stream"
)

const (
	// Drain is how long more output is waited for when the command has ended, but somebody it left behind holds the
	// pipe.
	Drain = time.Second
	// dead is how long the end of a command that was killed is waited for.
	dead = 10 * time.Second
)

// starter starts processes in containers: a keeper.
type starter interface {
	Exec(ctx context.Context, e keeper.Exec) (*keeper.Process, error)
}

// Run runs a process and copies its streams, nil ones being /dev/null. When ctx ends, the cause is returned and the
// whole process group killed; but when a client has gone, the process only loses its streams: a terminal is hung up,
// and who reads or writes a pipe finds it closed.
func Run(ctx context.Context, k starter, x keeper.Exec, stdin io.Reader, stdout, stderr io.Writer, resize <-chan remotecommand.TerminalSize) (int32, error) {
	var s stdio
	defer s.close()
	if !x.Process.Terminal {
		if err := s.pipes(&x, stdin, stdout, stderr); err != nil {
			return 0, err
		}
	}
	p, err := k.Exec(ctx, x)
	s.closeTheirs()
	if err != nil {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		return 0, err
	}
	defer p.Close()
	if x.Process.Terminal {
		s.console(p.Console, stdin, stdout)
		go Resize(ctx, p, resize)
	}
	s.start()
	exit, err := p.Wait(ctx)
	if err != nil && errors.Is(context.Cause(ctx), stream.ErrGone) {
		return 0, stream.ErrGone
	}
	if err != nil && ctx.Err() != nil {
		killed := p.Kill(unix.SIGKILL)
		// So that no zombie is left: the group is dead, this does not take long.
		dying, cancel := context.WithTimeout(context.WithoutCancel(ctx), dead)
		defer cancel()
		_, _ = p.Wait(dying)
		return 0, errors.Join(context.Cause(ctx), killed)
	}
	if err != nil {
		return 0, err
	}
	s.finish(ctx)
	return int32(exit.Code), nil
}

// copyAll is io.Copy, which would rather have the file write itself, with a buffer of its own.
func copyAll(to io.Writer, from *os.File) (int64, error) {
	if c, ok := to.(*Capped); ok {
		return c.ReadFrom(from)
	}
	return io.Copy(to, from)
}

// Feed copies a client's input, then ends it. What is not wanted any more is read all the same: a message that nobody
// takes holds up all the others of its connection.
func Feed(to io.WriteCloser, from io.Reader) {
	_, err := io.Copy(to, from)
	to.Close()
	if err != nil {
		_, _ = io.Copy(io.Discard, from)
	}
}

// Resize hands on the sizes of a terminal until there are no more, or it is gone.
func Resize(ctx context.Context, p interface{ Resize(w, h uint16) error }, sizes <-chan remotecommand.TerminalSize) {
	for {
		select {
		case <-ctx.Done():
			return
		case s, ok := <-sizes:
			if !ok {
				return
			}
			if p.Resize(s.Width, s.Height) != nil {
				return // the terminal is gone
			}
		}
	}
}

// stdio is our ends of the streams of an exec, and the copying between them and the client.
type stdio struct {
	ours, theirs []*os.File
	readers      []*os.File // which output comes from
	copies       []func()
	running      chan struct{}
	left         int
}

func (s *stdio) pipes(x *keeper.Exec, stdin io.Reader, stdout, stderr io.Writer) error {
	if stdin != nil {
		r, w, err := pipe(false)
		if err != nil {
			return err
		}
		x.Stdin = r
		s.theirs, s.ours = append(s.theirs, r), append(s.ours, w)
		// Not waited for: the client may keep its end open for as long as it likes.
		go Feed(w, stdin)
	}
	for _, o := range []struct {
		to   io.Writer
		file **os.File
	}{{stdout, &x.Stdout}, {stderr, &x.Stderr}} {
		if o.to == nil {
			continue
		}
		r, w, err := pipe(true)
		if err != nil {
			return err
		}
		*o.file = w
		s.theirs, s.ours = append(s.theirs, w), append(s.ours, r)
		s.output(r, o.to)
	}
	return nil
}

// pipe makes a pipe of which only our end does not block. The other end goes to a program, and few are made for output
// that fails because a reader is slow; os.Pipe makes both ends alike.
func pipe(readIsOurs bool) (r, w *os.File, err error) {
	var fd [2]int
	if err := unix.Pipe2(fd[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	ours := fd[1]
	if readIsOurs {
		ours = fd[0]
	}
	if err := unix.SetNonblock(ours, true); err != nil {
		unix.Close(fd[0])
		unix.Close(fd[1])
		return nil, nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd[0]), "|0"), os.NewFile(uintptr(fd[1]), "|1"), nil
}

func (s *stdio) console(c *os.File, stdin io.Reader, stdout io.Writer) {
	s.ours = append(s.ours, c)
	if stdin != nil {
		go Feed(keepOpen{c}, stdin)
	}
	if stdout == nil {
		stdout = io.Discard
	}
	s.output(c, stdout)
}

// keepOpen is a terminal, whose output goes on after its input: both are one file.
type keepOpen struct{ io.Writer }

func (keepOpen) Close() error { return nil }

func (s *stdio) output(from *os.File, to io.Writer) {
	s.readers = append(s.readers, from)
	s.copies = append(s.copies, func() {
		_, err := copyAll(to, from)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = copyRest(to, from)
		}
		if err != nil {
			// The client is gone. Without a reader the command is told by SIGPIPE.
			from.Close()
		}
	})
}

func (s *stdio) start() {
	s.running, s.left = make(chan struct{}, len(s.copies)), len(s.copies)
	for _, c := range s.copies {
		go func() {
			c()
			s.running <- struct{}{}
		}()
	}
}

// finish waits for the output there is. Processes the command has left behind may hold its pipes open for ever: after a
// while only what is in the pipes by then is copied, however long the client takes for it.
func (s *stdio) finish(ctx context.Context) {
	timeout := time.After(Drain)
	for s.left > 0 {
		select {
		case <-s.running:
			s.left--
		case <-timeout:
			for _, f := range s.readers {
				if f.SetReadDeadline(time.Now()) != nil {
					return // a terminal that cannot be waited for
				}
			}
		case <-ctx.Done():
			return
		}
	}
}

// copyRest copies what is in a pipe or terminal now.
func copyRest(to io.Writer, from *os.File) error {
	raw, err := from.SyscallConn()
	if err != nil {
		return err
	}
	left, failed := 0, error(nil)
	if err := raw.Control(func(fd uintptr) { left, failed = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }); err != nil || failed != nil {
		return errors.Join(err, failed)
	}
	buf := chunks.Get().(*[8 << 10]byte) // nothing else is in there
	defer chunks.Put(buf)
	for left > 0 {
		n := 0
		// Not by the file, whose deadline has passed.
		if err := raw.Control(func(fd uintptr) { n, failed = unix.Read(int(fd), buf[:min(left, len(buf))]) }); err != nil {
			return err
		}
		switch {
		case errors.Is(failed, unix.EINTR):
			continue
		case failed != nil || n == 0:
			return failed
		}
		left -= n
		if _, err := to.Write(buf[:n]); err != nil {
			return err
		}
	}
	return nil
}

func (s *stdio) closeTheirs() {
	for _, f := range s.theirs {
		f.Close()
	}
	s.theirs = nil
}

// close ends the copies, and waits for them: what they write to is the caller's again.
func (s *stdio) close() {
	s.closeTheirs()
	for _, f := range s.ours {
		f.Close()
	}
	for ; s.left > 0; s.left-- {
		<-s.running
	}
}
