package pressure

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups/internal/kernfs"
)

// Trigger is how much tasks have to stand still within a window for an event. The kernel takes windows of half a second
// to ten seconds, and tells once in a window at most.
type Trigger struct {
	Full   bool // all tasks at once stand still, not only some
	Stall  time.Duration
	Window time.Duration
}

// text is what the kernel wants to read; a NUL ends it.
func (t Trigger) text() string {
	kind := "some"
	if t.Full {
		kind = "full"
	}
	return fmt.Sprintf("%s %d %d\x00", kind, t.Stall.Microseconds(), t.Window.Microseconds())
}

func (t Trigger) check() error {
	if t.Window < 500*time.Millisecond || t.Window > 10*time.Second {
		return fmt.Errorf("window %v is not from 500ms to 10s", t.Window)
	}
	if t.Stall <= 0 || t.Stall > t.Window {
		return fmt.Errorf("stall %v is not within window %v", t.Stall, t.Window)
	}
	return nil
}

// coarse is what windows of those without CAP_SYS_RESOURCE are multiples of since Linux 6.5; kernels before have none
// for them.
const coarse = 2 * time.Second

// coarser is the trigger that such a process can have instead: the same stall, in the shortest window that it may have.
func (t Trigger) coarser() Trigger {
	t.Window = (t.Window + coarse - 1) / coarse * coarse
	return t
}

// PSI tells of stalls: file is below /proc/pressure, or a *.pressure of a v2 group. Without CAP_SYS_RESOURCE the window
// is a longer one.
func (w *Watcher) PSI(file string, t Trigger) (*Source, error) {
	if err := t.check(); err != nil {
		return nil, fmt.Errorf("watch %s: %w", file, err)
	}
	fd, err := trigger(file, t)
	if errors.Is(err, unix.EINVAL) && t.coarser() != t {
		fd, err = trigger(file, t.coarser())
	}
	if err != nil {
		return nil, unsupported(file, err)
	}
	s, err := w.source(fd, unix.EPOLLPRI, func(events uint32) (news, more bool) {
		// With its group a trigger goes, and the descriptor is nothing but an error. Polling takes the event away.
		return events&unix.EPOLLPRI != 0, events&unix.EPOLLERR == 0
	})
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", file, err)
	}
	return s, nil
}

// trigger opens a file and writes a trigger to it, which lives as long as the descriptor.
func trigger(file string, t Trigger) (int, error) {
	fd, err := kernfs.Retry(func() (int, error) { return unix.Open(file, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0) })
	if err != nil {
		return -1, err
	}
	if _, err := kernfs.Retry(func() (int, error) { return unix.Write(fd, []byte(t.text())) }); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("set trigger %q: %w", t.text(), err)
	}
	return fd, nil
}
