package cli

import (
	"context"
	"errors"
	"io"

	"github.com/moby/term"
)

// errDetached says that the keys were typed that leave an attached container to itself.
var errDetached = errors.New("detached")

// detachKeys are docker's, which people know.
const detachKeys = "ctrl-p,ctrl-q"

// detachable reads what is typed until the keys come that end the attachment. Then nothing more is read, and the end of
// the input is not told before the connection is gone: to the container it would be the end of its own.
type detachable struct {
	io.Reader
	detach context.CancelCauseFunc
	gone   chan struct{} // closed when the connection is gone
}

func newDetachable(in io.Reader, keys []byte, detach context.CancelCauseFunc) *detachable {
	return &detachable{term.NewEscapeProxy(in, keys), detach, make(chan struct{})}
}

// Read implements [io.Reader].
func (d *detachable) Read(p []byte) (int, error) {
	n, err := d.Reader.Read(p)
	if !errors.As(err, &term.EscapeError{}) {
		return n, err
	}
	if n > 0 {
		return n, nil // what was typed before is the container's; the next call says the same again
	}
	d.detach(errDetached)
	<-d.gone
	return 0, io.EOF
}
