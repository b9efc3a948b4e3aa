package cli

import (
	"context"
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"
)

// full is a disk that has room for some bytes.
type full struct{ room int }

func (f *full) Write(p []byte) (int, error) {
	if f.room -= len(p); f.room < 0 {
		return 0, syscall.ENOSPC
	}
	return len(p), nil
}

// TestLostOutput ends a stream with the first piece that cannot be written.
func TestLostOutput(t *testing.T) {
	ctx, lost := context.WithCancelCause(t.Context())
	defer lost(nil)
	w := &whole{w: &full{8}, lost: lost}
	if _, err := io.WriteString(w, "fits"); err != nil || ctx.Err() != nil {
		t.Fatalf("%v, %v", err, ctx.Err())
	}
	if _, err := io.WriteString(w, "too long"); err != nil {
		t.Errorf("the library is told: %v", err)
	}
	if err := context.Cause(ctx); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "output") || ExitCode(err) != ExitFailure {
		t.Errorf("%v", err)
	}
}
