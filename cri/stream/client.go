package stream

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// linger is how long a client may take to close its end when all has been sent to it.
const linger = 30 * time.Second

// client is a client whose connection is told of: once it is not HTTP any more, net/http does not look at it.
type client struct {
	http.ResponseWriter
	gone func()
	conn atomic.Pointer[watched]
}

// Hijack takes the connection over.
func (c *client) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(c.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, fmt.Errorf("take over connection: %w", err)
	}
	w := &watched{Conn: conn, gone: c.gone}
	c.conn.Store(w)
	// What was read beyond the request belongs to the client's next words.
	early := make([]byte, rw.Reader.Buffered())
	if _, err := io.ReadFull(rw.Reader, early); err != nil {
		return nil, nil, fmt.Errorf("take over connection: %w", err)
	}
	return w, bufio.NewReadWriter(bufio.NewReader(io.MultiReader(bytes.NewReader(early), w)), bufio.NewWriter(w)), nil
}

// cut closes the connection at once.
func (c *client) cut() {
	if w := c.conn.Load(); w != nil {
		w.Conn.Close()
	}
}

// end closes the connection when the client has closed its end. The kernel resets a connection that is closed with
// input unread, and the client would lose what it has not read yet: the end of the output, and how the command ended.
func (c *client) end() {
	w := c.conn.Load()
	if w == nil {
		return
	}
	w.Close()
	late := time.AfterFunc(linger, c.cut)
	defer late.Stop()
	_, _ = io.Copy(io.Discard, w.Conn)
	c.cut()
}

// watched is a connection that tells when no more comes from the client. All protocols here read all the time.
type watched struct {
	net.Conn
	gone   func()
	closed atomic.Bool
}

// Read reads nothing more once Close was called: to the library, which logs every frame it has no use for, that is the
// client's end.
func (w *watched) Read(p []byte) (int, error) {
	if w.closed.Load() {
		return 0, io.EOF
	}
	n, err := w.Conn.Read(p)
	if err != nil {
		w.gone()
	}
	if w.closed.Load() {
		return 0, io.EOF
	}
	return n, err
}

// Close ends what is sent. SPDY has a word for the client's end, on which the library closes the connection.
func (w *watched) Close() error {
	w.closed.Store(true)
	w.gone()
	if c, ok := w.Conn.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite() // not when the client has closed it
	}
	return nil
}
