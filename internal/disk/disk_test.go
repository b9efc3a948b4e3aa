package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestKinds(t *testing.T) {
	wrapped := func(e unix.Errno) error {
		return fmt.Errorf("write: %w", &os.PathError{Op: "write", Path: "/x", Err: e})
	}
	for _, c := range []struct {
		err                    error
		full, says, unwritable bool
	}{
		{nil, false, false, false},
		{wrapped(unix.ENOSPC), true, true, true},
		{wrapped(unix.EDQUOT), true, true, true},
		{wrapped(unix.EROFS), false, false, true},
		{wrapped(unix.EIO), false, false, true},
		{wrapped(unix.EACCES), false, false, false},
		{errors.New("rpc error: code = Unknown desc = write /x: no space left on device"), false, true, false},
		{errors.New("rpc error: code = Unknown desc = write /x: disk quota exceeded"), false, true, false},
	} {
		if Full(c.err) != c.full || SaysFull(c.err) != c.says || Unwritable(c.err) != c.unwritable {
			t.Errorf("%v: full %v, says so %v, unwritable %v", c.err, Full(c.err), SaysFull(c.err), Unwritable(c.err))
		}
	}
}

// TestScarce: what containers can take from the node is not the file's fault.
func TestScarce(t *testing.T) {
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM} {
		if !Scarce(&os.PathError{Op: "watch", Path: "/x", Err: e}) {
			t.Errorf("%v", e)
		}
	}
	if Scarce(nil) || Scarce(unix.EACCES) {
		t.Error("what is not")
	}
}

func TestAgain(t *testing.T) {
	other := errors.New("another")
	for name, c := range map[string]struct {
		fails []error // of the calls; then they succeed
		more  bool
		calls int
		rooms int
		err   error
	}{
		"succeeds":         {nil, true, 1, 0, nil},
		"another error":    {[]error{other}, true, 1, 0, other},
		"has room then":    {[]error{unix.ENOSPC}, true, 2, 1, nil},
		"no more room":     {[]error{unix.ENOSPC}, false, 1, 1, unix.ENOSPC},
		"never has room":   {[]error{unix.ENOSPC, unix.EDQUOT, unix.ENOSPC, unix.ENOSPC}, true, Tries, Tries - 1, unix.ENOSPC},
		"another one then": {[]error{unix.EDQUOT, other}, true, 2, 1, other},
	} {
		calls, rooms := 0, 0
		err := Again(t.Context(), func() error {
			calls++
			if calls > len(c.fails) {
				return nil
			}
			return c.fails[calls-1]
		}, func(since time.Time, err error) bool {
			rooms++
			if since.IsZero() || !errors.Is(err, c.fails[calls-1]) {
				t.Errorf("%s: room for what began at %v and failed with %v", name, since, err)
			}
			return c.more
		})
		if calls != c.calls || rooms != c.rooms || !errors.Is(err, c.err) {
			t.Errorf("%s: %d calls, room made %d times, %v", name, calls, rooms, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	calls := 0
	if err := Again(ctx, func() error { calls++; return unix.ENOSPC }, nil); !errors.Is(err, unix.ENOSPC) || calls != 1 {
		t.Errorf("after its end: %d calls, %v", calls, err)
	}
}
