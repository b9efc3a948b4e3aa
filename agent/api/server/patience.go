package server

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"time"
)

// patience is how long is waited for clients. Zero is for ever.
type patience struct {
	Read  time.Duration // for the next bytes of a request's body
	Write time.Duration // until bytes of an answer are taken
}

// handler makes next wait no longer than that. Without it a client that says it sends a body and sends none is waited
// for even when it was refused: the server reads what is left of a body before it goes on with the connection.
func (p patience) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(rw)
		w := &patientWriter{ResponseWriter: rw, control: control, limit: p.Write}
		var body *patientBody
		if r.Body != nil && r.Body != http.NoBody && p.Read > 0 {
			body = &patientBody{ReadCloser: r.Body, control: control, limit: p.Read}
			r.Body = body
		}
		defer func() {
			if w.hijacked {
				return
			}
			// From here on the server reads and writes by itself. It sets the time for the next request again.
			if body != nil && !body.ended {
				_ = control.SetReadDeadline(time.Now().Add(p.Read))
			}
			if p.Write > 0 {
				_ = control.SetWriteDeadline(time.Now().Add(p.Write))
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// patientBody is a request's body whose next bytes must come in time. The deadline is taken back after each read: it is
// the connection's, and while a request is answered the server reads from it to hear when the client goes.
type patientBody struct {
	io.ReadCloser
	control *http.ResponseController
	limit   time.Duration
	ended   bool
}

func (b *patientBody) Read(p []byte) (int, error) {
	_ = b.control.SetReadDeadline(time.Now().Add(b.limit)) // a connection that has none is gone, which the read tells
	n, err := b.ReadCloser.Read(p)
	b.ended = b.ended || errors.Is(err, io.EOF)
	_ = b.control.SetReadDeadline(time.Time{})
	return n, err
}

// patientWriter is an answer whose bytes must be taken in time. In HTTP/2 a deadline ends a stream that nobody writes
// to, too, so that there is one only while something is written.
type patientWriter struct {
	http.ResponseWriter
	control  *http.ResponseController
	limit    time.Duration
	hijacked bool
}

func (w *patientWriter) timed(write func()) {
	if w.limit > 0 {
		_ = w.control.SetWriteDeadline(time.Now().Add(w.limit))
		defer func() { _ = w.control.SetWriteDeadline(time.Time{}) }()
	}
	write()
}

func (w *patientWriter) Write(p []byte) (n int, err error) {
	w.timed(func() { n, err = w.ResponseWriter.Write(p) })
	return n, err
}

// Flush sends what was written so far.
func (w *patientWriter) Flush() { _ = w.FlushError() }

// FlushError is what http.ResponseController looks for.
func (w *patientWriter) FlushError() (err error) {
	w.timed(func() { err = w.control.Flush() })
	return err
}

// Hijack hands over the connection, which is then as patient as who has it.
func (w *patientWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.hijacked = true
	return w.control.Hijack()
}

// Unwrap lets http.ResponseController reach the connection.
func (w *patientWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
