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
	conn  *connection
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
	defer context.AfterFunc(ctx, c.bus.Close)() // this call takes no context
	text, err := c.bus.GetManagerProperty("Version")
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
		s.conn.bus.Close()
		s.conn = nil
	}
	return nil
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
		err := s.job(ctx, "start", unit, func(ctx context.Context, c *dbus.Conn, done chan<- string) error {
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
		case errors.Is(err, errEndUntold):
			return s.await(ctx, unit)
		}
		return err
	}
}

// await waits until a unit that is loaded has started: systemd merges jobs of a kind, and answers that of a unit that
// runs at once.
func (s *Driver) await(ctx context.Context, unit string) error {
	for {
		err := s.job(ctx, "start", unit, func(ctx context.Context, c *dbus.Conn, done chan<- string) error {
			_, err := c.StartUnitContext(ctx, unit, "replace", done)
			return err
		})
		if !errors.Is(err, errEndUntold) {
			return err
		}
	}
}

// restart starts a slice that is loaded and tells it its properties.
func (s *Driver) restart(ctx context.Context, unit string, props []dbus.Property) error {
	if err := s.await(ctx, unit); err != nil {
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
	err := s.do(ctx, func(ctx context.Context, c *connection) error {
		if err := c.bus.SetUnitPropertiesContext(ctx, unit, true, props...); err != nil {
			return err
		}
		// The answer comes before the files are written, and the next call is taken after that.
		_, err := c.bus.SystemStateContext(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("set properties of unit %s: %w", unit, err)
	}
	return nil
}

func (s *Driver) resetFailed(ctx context.Context, unit string) error {
	err := s.do(ctx, func(ctx context.Context, c *connection) error { return c.bus.ResetFailedUnitContext(ctx, unit) })
	if err != nil && !isBusError(err, "NoSuchUnit") {
		return fmt.Errorf("reset unit %s: %w", unit, err)
	}
	return nil
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
	for {
		err := s.job(ctx, "stop", unit, func(ctx context.Context, c *dbus.Conn, done chan<- string) error {
			_, err := c.StopUnitContext(ctx, unit, "replace", done)
			return err
		})
		switch {
		case isBusError(err, "NoSuchUnit"):
			return nil
		case !errors.Is(err, errEndUntold):
			return err
		}
	}
}
