package cri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/systemd"
)

// realGroups is the hierarchy of the machine.
type realGroups struct{ *cgroups.Hierarchy }

// Update changes the settings of a group, unless that would have the kernel kill somebody in it.
func (g realGroups) Update(path string, r *specs.LinuxResources) error {
	if err := cgroups.Reclaimable(g.Hierarchy, path, r); err != nil {
		return fmt.Errorf("update group %s: %w", path, err)
	}
	return g.Hierarchy.Update(path, r)
}

// openGroups returns the groups that the driver makes.
func (s *Server) openGroups(h *cgroups.Hierarchy) (groups, error) {
	switch s.cfg.CgroupDriver {
	case "", cgroups.DriverCgroupfs:
		return realGroups{h}, nil
	case cgroups.DriverSystemd:
		units, err := systemd.Open(h)
		if err != nil {
			return nil, err
		}
		s.closers = append(s.closers, units.Close)
		return unitGroups{h, units}, nil
	}
	return nil, fmt.Errorf("%w: cgroup driver %q", errInvalid, s.cfg.CgroupDriver)
}

// makeOwnGroups makes the group of launchers and what is above it.
func (m *machine) makeOwnGroups() error {
	for _, g := range []string{m.defaultParent(), m.launchCgroup()} {
		if err := m.cgroups.Create(g, nil); err != nil {
			return err
		}
	}
	return nil
}

// Attach puts a process into a group, in every hierarchy. A process or group that is gone is no error.
func (g realGroups) Attach(path string, pid int) error {
	for _, f := range g.ProcsFiles(path) {
		err := write(f, strconv.Itoa(pid))
		if errors.Is(err, unix.ESRCH) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("attach process %d to group %s: %w", pid, path, err)
		}
	}
	return nil
}

// Warm makes the attachments of the next moments cheap, while there is still other work to do. Where it fails they take longer.
func (g realGroups) Warm() { _ = cgroups.Warm(g.Hierarchy) }

// unitGroups are the groups of the machine, made by systemd.
type unitGroups struct {
	*cgroups.Hierarchy
	units *systemd.Driver
}

func (g unitGroups) Create(path string, r *specs.LinuxResources) error {
	return g.units.Create(path, r)
}

func (g unitGroups) Remove(ctx context.Context, path string) error { return g.units.Remove(ctx, path) }

// Attach makes the scope, which cannot be without a process.
func (g unitGroups) Attach(path string, pid int) error { return g.units.StartScope(path, pid) }

// Warm is [realGroups.Warm].
func (g unitGroups) Warm() { _ = cgroups.Warm(g.Hierarchy) }

// Update is [realGroups.Update].
func (g unitGroups) Update(path string, r *specs.LinuxResources) error {
	if err := cgroups.Reclaimable(g.Hierarchy, path, r); err != nil {
		return fmt.Errorf("update group %s: %w", path, err)
	}
	return g.units.Update(path, r)
}

func write(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
