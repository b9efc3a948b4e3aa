package systemd

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/coreos/go-systemd/v22/dbus"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups/internal/kernfs"
)

// versionOf is the number in what systemd calls its version, as in "255.4-1ubuntu8", and 0 where there is none.
func versionOf(text string) int {
	digits := strings.TrimLeft(text, `"v`)
	if end := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		digits = digits[:end]
	}
	n, _ := strconv.Atoi(digits)
	return n
}

// StartScope makes a scope around a process, delegated, so that what is below it is ours alone. Where the scope is
// there, the process joins it by the kernel's files.
func (s *Driver) StartScope(group string, pid int) error {
	group, unit, err := unitAt(group)
	if err != nil {
		return err
	}
	if !kernfs.Exists(s.dir + group) {
		props := []dbus.Property{
			dbus.PropDescription("container of berth: " + unit),
			Property("DefaultDependencies", false),
			Property("Delegate", true),
			Property("PIDs", []uint32{uint32(pid)}),
			Property("TasksMax", Infinity), // systemd's default for scopes is not the pod's
			// Nobody would look after a scope whose processes were killed for want of memory.
			Property("CollectMode", "inactive-or-failed"),
		}
		if slice := path.Base(path.Dir(group)); strings.HasSuffix(slice, ".slice") {
			props = append(props, dbus.PropSlice(slice))
		}
		if err := s.MakeScope(group, append(props, accounting(s.h.Mode())...)); err != nil {
			return err
		}
	}
	if err := s.complete(group); err != nil {
		return err
	}
	for _, dir := range s.h.Dirs(group) {
		err := kernfs.Write(dir, "cgroup.procs", strconv.Itoa(pid))
		if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) {
			return nil // the process has ended, and the scope with it
		}
		if err != nil {
			return fmt.Errorf("attach process %d to group %s: %w", pid, group, err)
		}
	}
	return nil
}

// Version is that of systemd when the driver was opened.
func (s *Driver) Version() int { return s.version }

// ErrUnanswered says that systemd may still do what it was asked for.
var ErrUnanswered = errors.New("systemd does not answer")

// MakeScope starts a scope with these properties, which say who is in it.
func (s *Driver) MakeScope(group string, props []dbus.Property) error {
	group, unit, err := unitAt(group)
	if err != nil {
		return err
	}
	// With the first scope in a slice systemd switches more controllers on in it, and applies its settings again.
	err = s.keep(path.Dir(group), func() error { return s.start(unit, props) })
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", ErrUnanswered, err)
	}
	if err != nil {
		return fmt.Errorf("make scope %s: %w", group, err)
	}
	return nil
}

// StopScope ends a scope with whoever is in it, and one that is not there.
func (s *Driver) StopScope(group string) error {
	if err := s.stop(context.Background(), path.Base(group)); err != nil {
		return fmt.Errorf("stop scope %s: %w", group, err)
	}
	return nil
}

// Settle returns when systemd has done what it was asked for before.
func (s *Driver) Settle() error {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	err := s.do(ctx, func(ctx context.Context, c *connection) error {
		_, err := c.bus.SystemStateContext(ctx)
		return err
	})
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", ErrUnanswered, err)
	}
	return err
}
