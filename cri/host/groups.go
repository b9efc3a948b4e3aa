package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/systemd"
	"github.com/berth-node/berth/cri/fault"
)

// tree is the groups of the host: the kernel's hierarchy, and who makes groups in it.
type tree struct {
	hierarchy *cgroups.Hierarchy
	maker     maker
}

// maker makes, changes and removes groups.
type maker interface {
	Create(path string, r *specs.LinuxResources) error
	Update(path string, r *specs.LinuxResources) error
	Remove(ctx context.Context, path string) error
	// StartScope puts a process into a group, in every hierarchy. A process or group that is gone is no error.
	StartScope(path string, pid int) error
}

// OpenGroups returns the groups that the driver makes, and what ends the driver.
func OpenGroups(h *cgroups.Hierarchy, driver string) (Groups, func() error, error) {
	switch driver {
	case "", cgroups.DriverCgroupfs:
		return tree{h, files{h}}, func() error { return nil }, nil
	case cgroups.DriverSystemd:
		units, err := systemd.Open(h)
		if err != nil {
			return nil, nil, err
		}
		return tree{h, units}, units.Close, nil
	}
	return nil, nil, fmt.Errorf("%w: cgroup driver %q", fault.ErrInvalid, driver)
}

// MakeOwnGroups makes the group of launchers and what is above it.
func (m *Host) MakeOwnGroups() error {
	for _, g := range []string{m.DefaultParent(), m.LaunchCgroup()} {
		if err := m.Cgroups.Create(g, nil); err != nil {
			return err
		}
	}
	return nil
}

func (t tree) Create(path string, r *specs.LinuxResources) error { return t.maker.Create(path, r) }

// Update changes the settings of a group, unless that would have the kernel kill somebody in it.
func (t tree) Update(path string, r *specs.LinuxResources) error {
	if err := cgroups.Reclaimable(t.hierarchy, path, r); err != nil {
		return fmt.Errorf("update group %s: %w", path, err)
	}
	return t.maker.Update(path, r)
}

func (t tree) Remove(ctx context.Context, path string) error { return t.maker.Remove(ctx, path) }

func (t tree) Attach(path string, pid int) error { return t.maker.StartScope(path, pid) }

// Warm makes the attachments of the next moments cheap, while there is still other work to do. Where it fails they take
// longer.
func (t tree) Warm() { _ = cgroups.Warm(t.hierarchy) }

func (t tree) Thaw(path string)                           { t.hierarchy.Thaw(path) }
func (t tree) Exists(path string) bool                    { return t.hierarchy.Exists(path) }
func (t tree) ProcsFiles(path string) []string            { return t.hierarchy.ProcsFiles(path) }
func (t tree) MemoryDir(path string) string               { return t.hierarchy.MemoryDir(path) }
func (t tree) FreezerDir(path string) string              { return t.hierarchy.FreezerDir(path) }
func (t tree) Stat(path string) (cgroups.Usage, error)    { return t.hierarchy.Stat(path) }
func (t tree) Detail(path string) (cgroups.Detail, error) { return t.hierarchy.Detail(path) }
func (t tree) Pids(path string) ([]int, error)            { return t.hierarchy.Pids(path) }

// files makes groups as directories.
type files struct{ hierarchy *cgroups.Hierarchy }

func (f files) Create(path string, r *specs.LinuxResources) error { return f.hierarchy.Create(path, r) }

func (f files) Update(path string, r *specs.LinuxResources) error { return f.hierarchy.Update(path, r) }

func (f files) Remove(ctx context.Context, path string) error { return f.hierarchy.Remove(ctx, path) }

// StartScope needs no unit: the group is there already.
func (f files) StartScope(path string, pid int) error {
	for _, file := range f.hierarchy.ProcsFiles(path) {
		err := write(file, strconv.Itoa(pid))
		if errors.Is(err, unix.ESRCH) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("attach process %d to group %s: %w", pid, path, err)
		}
	}
	return nil
}

func write(path, text string) error {
	// Bare system calls: an os.File of a group's file is registered with the runtime's poller, which the kernel wakes
	// at once.
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	for errors.Is(err, unix.EINTR) {
		fd, err = unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte(text))
	for errors.Is(err, unix.EINTR) {
		_, err = unix.Write(fd, []byte(text))
	}
	if err != nil {
		return &fs.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

// HugetlbUsable says whether containers can have limits of huge pages. Beside v1 controllers, a v2 hierarchy may hold
// this one: then libcontainer, which takes such a machine for one of v1, cannot set it, and every container of a client
// that names all page sizes, as kubelet does, would fail.
func HugetlbUsable(h *cgroups.Hierarchy) bool {
	dir := h.Dir("hugetlb", "/")
	return dir != "" && (h.Mode() == cgroups.Unified || dir != h.Dir("", "/"))
}
