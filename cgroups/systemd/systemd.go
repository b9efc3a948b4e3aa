// Package systemd is the cgroup driver that makes groups as units of the service manager, slices and scopes, so that it
// knows of them.
package systemd

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/internal/kernfs"
)

// Driver makes groups as units of systemd: slices for pods, scopes for what holds processes. It speaks to systemd where
// a unit begins or ends and where a value changes that systemd would write back at its next reload; everything else,
// and every value as well, goes to the kernel's files directly, as in the other driver.
type Driver struct {
	h    *cgroups.Hierarchy
	dir  string // the hierarchy that systemd has its units in
	kept keepers

	version int // of systemd

	calls chan struct{} // a place a call in flight: systemd does one thing at a time, and everybody else needs it too
	mu    sync.Mutex
	conn  *dbus.Conn
}

const (
	maxCalls    = 4
	callTimeout = 30 * time.Second
)

// Open connects to systemd over its own socket, so that no message bus need run.
func Open(h *cgroups.Hierarchy) (*Driver, error) {
	if !Running() {
		return nil, fmt.Errorf("use the systemd cgroup driver: %w", ErrNotRunning)
	}
	s := &Driver{h: h, calls: make(chan struct{}, maxCalls), dir: h.Dir("name=systemd", "/")}
	if s.dir == "" {
		s.dir = h.Dir("", "/")
	}
	if s.dir == "" {
		return nil, fmt.Errorf("use the systemd cgroup driver: %w: it has no hierarchy below %s", ErrNotRunning,
			h.Mountpoint())
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	c, err := s.connect(ctx, nil)
	if err != nil {
		return s, err
	}
	defer context.AfterFunc(ctx, c.Close)() // this call takes no context
	text, err := c.GetManagerProperty("Version")
	if err != nil {
		return s, fmt.Errorf("ask systemd for its version: %w", err)
	}
	s.version = versionOf(text)
	return s, nil
}

// Close ends the connection. Units stay.
func (s *Driver) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		s.conn.Close()
		s.conn = nil
	}
	return nil
}

// connect returns the connection, a new one if it is broken.
func (s *Driver) connect(ctx context.Context, broken *dbus.Conn) (*dbus.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil && s.conn != broken {
		return s.conn, nil
	}
	// The connection outlives the call that needed it first, but that waits no longer than it would for an answer: the
	// kernel connects to a systemd that has crashed, too, and nobody ever speaks there.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	made := context.AfterFunc(ctx, end)
	c, err := dbus.NewSystemdConnectionContext(life)
	if !made() {
		if err == nil {
			c.Close()
		}
		err = ctx.Err()
	}
	if err != nil {
		end()
		return nil, fmt.Errorf("connect to systemd: %w", err)
	}
	if s.conn != nil {
		s.conn.Close()
	}
	s.conn = c
	return c, nil
}

// do makes one call, again when the connection broke: systemd drops it when it re-executes itself.
func (s *Driver) do(ctx context.Context, call func(context.Context, *dbus.Conn) error) error {
	select {
	case s.calls <- struct{}{}:
		defer func() { <-s.calls }()
	case <-ctx.Done():
		return ctx.Err()
	}
	var broken *dbus.Conn
	for {
		c, err := s.connect(ctx, broken)
		if err != nil {
			return err
		}
		err = call(ctx, c)
		if broken == nil && (errors.Is(err, godbus.ErrClosed) || err != nil && !c.Connected()) {
			broken = c
			continue
		}
		return err
	}
}

// Driver is DriverSystemd.
func (s *Driver) Driver() string { return cgroups.DriverSystemd }

// Path is [SlicePath].
func (s *Driver) Path(root string, names ...string) string { return SlicePath(root, names...) }

// Create makes a slice with its settings. A scope comes into being with its first process, see [Driver.StartScope], so
// for one there is nothing to do.
func (s *Driver) Create(path string, r *specs.LinuxResources) error {
	path, unit, err := unitAt(path)
	if err != nil || strings.HasSuffix(unit, ".scope") {
		return err
	}
	if kernfs.Exists(s.dir + path) {
		// It runs, and systemd hears only what changes.
		if err := s.complete(path); err != nil || r == nil {
			return err
		}
		return s.Update(path, r)
	}
	if err := s.start(unit, s.sliceProperties(path, r)); err != nil {
		return fmt.Errorf("create group %s: %w", path, err)
	}
	if err := s.complete(path); err != nil || r == nil {
		return err
	}
	return s.h.Update(path, r)
}

// complete makes of a unit's group what systemd does not: on v1 the directories in the controllers that it was not
// asked for, on v2 the controllers that it does not know. Those that it knows are its own to switch, by what the units
// of a slice need.
func (s *Driver) complete(path string) error {
	if s.h.Mode() != cgroups.Unified {
		return s.h.Create(path, nil)
	}
	return s.h.Enable(path, "hugetlb")
}

func (s *Driver) sliceProperties(group string, r *specs.LinuxResources) []dbus.Property {
	props := []dbus.Property{
		dbus.PropDescription("pods of berth: " + path.Base(group)),
		Property("DefaultDependencies", false),
	}
	if parent := path.Base(path.Dir(group)); strings.HasSuffix(parent, ".slice") {
		props = append(props, dbus.PropWants(parent))
	}
	return append(append(props, accounting(s.h.Mode())...), unitProperties(s.h.Mode(), r)...)
}

// start starts a transient unit and waits until it has started. A slice that systemd has made by itself, as the parent
// of something, only gets the properties.
func (s *Driver) start(unit string, props []dbus.Property) error {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	for try := 0; ; try++ {
		done := make(chan string, 1)
		err := s.do(ctx, func(ctx context.Context, c *dbus.Conn) error {
			_, err := c.StartTransientUnitContext(ctx, unit, "replace", props, done)
			return err
		})
		switch {
		case isBusError(err, "UnitExists") && strings.HasSuffix(unit, ".slice"):
			return s.restart(ctx, unit, props)
		case isBusError(err, "UnitExists") && try == 0:
			// One that has failed and was not collected.
			if err := s.resetFailed(ctx, unit); err != nil {
				return err
			}
			continue
		case err != nil:
			return fmt.Errorf("start unit %s: %w", unit, err)
		}
		return finished(ctx, "start", unit, done)
	}
}

// restart starts a slice that is loaded and tells it its properties.
func (s *Driver) restart(ctx context.Context, unit string, props []dbus.Property) error {
	done := make(chan string, 1)
	err := s.do(ctx, func(ctx context.Context, c *dbus.Conn) error {
		_, err := c.StartUnitContext(ctx, unit, "replace", done)
		return err
	})
	if err != nil {
		return fmt.Errorf("start unit %s: %w", unit, err)
	}
	if err := finished(ctx, "start", unit, done); err != nil {
		return err
	}
	var settable []dbus.Property
	for _, p := range props {
		switch p.Name {
		case "Description", "DefaultDependencies", "Wants":
		default:
			settable = append(settable, p)
		}
	}
	return s.set(ctx, unit, settable)
}

// set returns when systemd has written the properties to the files as well.
func (s *Driver) set(ctx context.Context, unit string, props []dbus.Property) error {
	if len(props) == 0 {
		return nil
	}
	err := s.do(ctx, func(ctx context.Context, c *dbus.Conn) error {
		if err := c.SetUnitPropertiesContext(ctx, unit, true, props...); err != nil {
			return err
		}
		// The answer comes before the files are written, and the next call is taken after that.
		_, err := c.SystemStateContext(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("set properties of unit %s: %w", unit, err)
	}
	return nil
}

func (s *Driver) resetFailed(ctx context.Context, unit string) error {
	err := s.do(ctx, func(ctx context.Context, c *dbus.Conn) error { return c.ResetFailedUnitContext(ctx, unit) })
	if err != nil && !isBusError(err, "NoSuchUnit") {
		return fmt.Errorf("reset unit %s: %w", unit, err)
	}
	return nil
}

// finished waits for a job's end.
func finished(ctx context.Context, verb, unit string, done <-chan string) error {
	select {
	case result := <-done:
		if result != "done" {
			return fmt.Errorf("%s unit %s: the job has ended as %q", verb, unit, result)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s unit %s: %w", verb, unit, ctx.Err())
	}
}

func isBusError(err error, name string) bool {
	var e godbus.Error
	return errors.As(err, &e) && e.Name == "org.freedesktop.systemd1."+name
}

// Update writes the kernel's files. Only when that has changed one of those that systemd writes too is it told, since
// it would put its own value back at its next reload.
func (s *Driver) Update(path string, r *specs.LinuxResources) error {
	path, err := cgroups.GroupPath(path)
	if err != nil {
		return err
	}
	if c := r.CPU; s.h.Mode() == cgroups.Unified && c != nil && c.Cpus+c.Mems != "" &&
		!kernfs.Exists(s.h.Dir("", path)+"/cpuset.cpus") {
		// systemd has the controller on only where a unit needs it, and takes it away from where none does.
		if err := s.Announce(path, r); err != nil {
			return err
		}
	}
	before := s.fingerprint(path)
	if err := s.h.Update(path, r); err != nil {
		return err
	}
	if s.fingerprint(path) == before {
		return nil
	}
	return s.Announce(path, r)
}

// Announce makes systemd know values that the files have already.
func (s *Driver) Announce(path string, r *specs.LinuxResources) error {
	unit, err := unitOf(path)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	return s.keep(path, func() error { return s.set(ctx, unit, unitProperties(s.h.Mode(), r)) })
}

// fingerprint is what the files have that systemd writes too.
func (s *Driver) fingerprint(path string) string {
	var b strings.Builder
	for _, f := range unitFiles(s.h.Mode()) {
		controller, _, _ := strings.Cut(f, ".")
		dir := s.h.Dir(controller, path)
		if dir == "" {
			continue
		}
		text, _ := kernfs.ReadString(dir + "/" + f)
		b.WriteString(text)
		b.WriteByte('\n')
	}
	return b.String()
}

// Remove kills what is left in the group, ends its unit and removes it in every hierarchy. A scope that is empty is
// ended by systemd itself.
func (s *Driver) Remove(ctx context.Context, path string) error {
	path, unit, err := unitAt(path)
	if err != nil {
		return err
	}
	if strings.HasSuffix(unit, ".slice") && kernfs.Exists(s.dir+path) {
		if err := s.h.Kill(ctx, path); err != nil {
			return fmt.Errorf("remove group %s: %w", path, err)
		}
		if err := s.stop(ctx, unit); err != nil {
			return fmt.Errorf("remove group %s: %w", path, err)
		}
	}
	return s.h.Remove(ctx, path)
}

func (s *Driver) stop(ctx context.Context, unit string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	done := make(chan string, 1)
	err := s.do(ctx, func(ctx context.Context, c *dbus.Conn) error {
		_, err := c.StopUnitContext(ctx, unit, "replace", done)
		return err
	})
	if isBusError(err, "NoSuchUnit") {
		return nil
	}
	if err != nil {
		return fmt.Errorf("stop unit %s: %w", unit, err)
	}
	return finished(ctx, "stop", unit, done)
}
