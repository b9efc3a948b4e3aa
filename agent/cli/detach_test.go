package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"github.com/moby/term"
)

// TestDetachKeys types the keys, in pieces and beside others: what comes before them is passed on, and nothing tells
// the end of the input before the connection is gone.
func TestDetachKeys(t *testing.T) {
	keys, err := term.ToBytes(detachKeys)
	if err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]string{"\x10\x11": "", "ls\n\x10\x11more": "ls\n", "\x10a\x10\x11": "\x10a"} {
		for name, r := range map[string]io.Reader{
			"at once":   bytes.NewReader([]byte(in)),
			"in pieces": iotest.OneByteReader(bytes.NewReader([]byte(in))),
		} {
			ctx, cancel := context.WithCancelCause(t.Context())
			d := newDetachable(r, keys, cancel)
			go func() {
				<-ctx.Done()
				close(d.gone)
			}()
			got, err := io.ReadAll(d)
			if err != nil || !errors.Is(context.Cause(ctx), errDetached) {
				t.Errorf("%q %s: %v, %v", in, name, err, context.Cause(ctx))
			}
			if string(got) != want {
				t.Errorf("%q %s: passed on %q, want %q", in, name, got, want)
			}
		}
	}
}
