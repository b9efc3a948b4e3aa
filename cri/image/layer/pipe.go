package layer

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
)

const (
	packedChunk = 64 << 10
	plainChunk  = 256 << 10
	chunkCount  = 4
)

// chunk is a piece of a stream that all readers of a fan share.
type chunk struct {
	data []byte
	buf  []byte
	err  error // after data
	left atomic.Int32
}

// fan reads ahead of several readers of one stream, so that what produces the stream and what consumes it work at the
// same time. Its memory is fixed, and nothing is copied before the reader does.
type fan struct {
	ctx     context.Context
	free    chan *chunk
	readers []*branch
	done    chan struct{}
}

// newFan starts to read src, which must return when ctx ends, until its end, an error, or the end of ctx. Wait for done
// before src is used otherwise.
func newFan(ctx context.Context, src io.Reader, readers, size int) *fan {
	f := &fan{ctx: ctx, free: make(chan *chunk, chunkCount), done: make(chan struct{})}
	for range chunkCount {
		f.free <- &chunk{buf: make([]byte, size)}
	}
	for range readers {
		f.readers = append(f.readers, &branch{fan: f, next: make(chan *chunk, chunkCount)})
	}
	go f.fill(src)
	return f
}

func (f *fan) fill(src io.Reader) {
	defer close(f.done)
	for {
		var c *chunk
		select {
		case c = <-f.free:
		case <-f.ctx.Done():
			return
		}
		n := 0
		var err error
		for n < len(c.buf) && err == nil {
			var m int
			m, err = src.Read(c.buf[n:])
			n += m
		}
		c.data, c.err = c.buf[:n], err
		c.left.Store(int32(len(f.readers)))
		for _, r := range f.readers {
			r.next <- c // never blocks: there are no more chunks than places
		}
		if err != nil {
			return
		}
	}
}

// branch is one reader of a fan.
type branch struct {
	fan  *fan
	next chan *chunk
	cur  *chunk
	data []byte
}

// more makes data the next piece.
func (b *branch) more() error {
	for len(b.data) == 0 {
		if b.cur != nil {
			if b.cur.err != nil {
				return b.cur.err
			}
			if b.cur.left.Add(-1) == 0 {
				b.fan.free <- b.cur
			}
			b.cur = nil
		}
		select {
		case b.cur = <-b.next:
		case <-b.fan.ctx.Done():
			return context.Cause(b.fan.ctx)
		}
		b.data = b.cur.data
	}
	return nil
}

func (b *branch) Read(p []byte) (int, error) {
	if err := b.more(); err != nil {
		return 0, err
	}
	n := copy(p, b.data)
	b.data = b.data[n:]
	return n, nil
}

// WriteTo hands out the pieces uncopied.
func (b *branch) WriteTo(w io.Writer) (n int64, err error) {
	for {
		if err := b.more(); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return n, err
		}
		m, err := w.Write(b.data)
		n += int64(m)
		b.data = b.data[m:]
		if err != nil {
			return n, err
		}
	}
}
