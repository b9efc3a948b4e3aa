package filetree

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// priority is the class of this thread's I/O.
func priority(t *testing.T) int {
	t.Helper()
	p, _, errno := unix.RawSyscall(unix.SYS_IOPRIO_GET, ioprioWhoProcess, 0, 0)
	if errno != 0 {
		t.Fatal(errno)
	}
	return int(p >> ioprioClassShift)
}

// TestIdle: fn has the priority, on a thread that is nobody's afterwards.
func TestIdle(t *testing.T) {
	want := errors.New("it fails")
	var class, tid int
	err := Idle(func() error {
		class, tid = priority(t), unix.Gettid()
		return want
	})
	if !errors.Is(err, want) || class != ioprioClassIdle {
		t.Errorf("class %d, %v", class, err)
	}
	if tid == unix.Gettid() || priority(t) == ioprioClassIdle {
		t.Error("the thread that called has the priority")
	}
	for range 100 {
		done := make(chan struct{})
		go func() {
			defer close(done)
			if priority(t) == ioprioClassIdle {
				t.Error("another goroutine has the priority")
			}
		}()
		<-done
	}
}
