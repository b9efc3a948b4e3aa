package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// A stage holds the parts of a container's tree that are the same whatever its
// image is: /dev, /sys, and on cgroup v1 /sys/fs/cgroup with a mount for each
// hierarchy. They are put together at a place of the host, in the mount
// namespace that init has by then, where no name is of a container's making.
// libcontainer then binds each as a whole. Left to it, which trusts nothing
// below a root file system, every part is looked up, checked and reopened on its
// own: three dozen times, for half of all the time that a start takes.
type stage struct {
	Dir    string // covered for it, in init's namespace only
	Dev    *specs.Mount
	OnDev  []specs.Mount // below /dev, of the machine's making
	Sys    *specs.Mount
	Cgroup *specs.Mount
	Trees  []cgroups.Mount
	Files  []fileBind // not in Dir, see there
}

// stageOf takes out of a config what a stage can hold, and leaves in its place
// what binds it. Nothing is staged that depends on the container: ids of its
// own, labels, devices. Nor for a root that mounts travel through to the host,
// since the stage has to be cut off from it first.
func stageOf(spec *specs.Spec, dir, root string) stage {
	st := stage{Dir: dir}
	l := spec.Linux
	has := func(kind specs.LinuxNamespaceType) bool {
		return slices.ContainsFunc(l.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == kind })
	}
	if l == nil || l.MountLabel != "" || strings.Contains(l.RootfsPropagation, "shared") || has(specs.UserNamespace) ||
		!has(specs.MountNamespace) {
		return st
	}
	var rest []specs.Mount
	for _, m := range spec.Mounts {
		if !st.take(m, len(l.Devices) == 0, !has(specs.CgroupNamespace)) && !st.takeSys(m, root) {
			rest = append(rest, m)
			continue
		}
		// The first of a tree is where the whole is bound.
		switch m.Destination {
		case "/dev", cgroupRoot:
			rest = append(rest, st.bind(m))
		case sysRoot:
			rest = append(rest, st.bindSys(m, l))
		}
	}
	st.Files, spec.Mounts = takeFiles(rest, root)
	return st
}

const (
	sysRoot    = "/sys"
	cgroupRoot = "/sys/fs/cgroup"
)

// takeSys says whether m, which is the container's /sys, becomes part of the
// stage. libcontainer mounts it only where the image has a directory or nothing.
func (st *stage) takeSys(m specs.Mount, root string) bool {
	if m.Destination != sysRoot || m.Type != "sysfs" || st.Sys != nil {
		return false
	}
	if fi, err := os.Lstat(filepath.Join(root, sysRoot)); err == nil && !fi.IsDir() {
		return false
	}
	st.Sys = &m
	return true
}

// bindSys is the mount by which libcontainer shows /sys, read-only where the
// path is to be. As a read-only path it would be bound on itself with all that is
// mounted below: a second /sys, and a second mount of each hierarchy.
func (st *stage) bindSys(m specs.Mount, l *specs.Linux) specs.Mount {
	b := st.bind(m)
	if i := slices.Index(l.ReadonlyPaths, sysRoot); i >= 0 {
		l.ReadonlyPaths = slices.Delete(slices.Clone(l.ReadonlyPaths), i, i+1)
		b.Options = append(b.Options, "ro")
	}
	return b
}

// take says whether m becomes part of the stage.
func (st *stage) take(m specs.Mount, dev, cgroup bool) bool {
	switch {
	case len(m.UIDMappings)+len(m.GIDMappings) > 0:
		return false
	case m.Destination == "/dev" && m.Type == "tmpfs" && dev && st.Dev == nil:
		st.Dev = &m
		return true
	case m.Destination == cgroupRoot && m.Type == "cgroup" && cgroup && st.Cgroup == nil:
		if cgroups.IsCgroup2UnifiedMode() {
			return false // one mount, which has to be made in the container's cgroup namespace
		}
		trees, err := hierarchies()
		if err != nil {
			return false // libcontainer will tell
		}
		st.Cgroup, st.Trees = &m, trees
		return true
	case st.Dev == nil:
		return false
	case m.Destination == "/dev/pts" && m.Type == "devpts", m.Destination == "/dev/mqueue" && m.Type == "mqueue",
		m.Destination == "/dev/shm" && m.Type == "bind" && slices.Equal(m.Options, shmOptions):
		st.OnDev = append(st.OnDev, m)
		return true
	}
	return false
}

// shmOptions are those of the pod's shared memory. The mount that is bound has the
// flags among them already.
var shmOptions = []string{"rbind", "rprivate", "nosuid", "noexec", "nodev", "rw"}

// bind is the mount by which libcontainer shows a part of the stage.
func (st *stage) bind(m specs.Mount) specs.Mount {
	flags, _ := mountOptions(m.Options)
	opts := []string{"rbind", "rprivate"}
	for name, f := range mountFlags {
		if f != 0 && flags&f == f {
			opts = append(opts, name)
		}
	}
	return specs.Mount{Destination: m.Destination, Type: "bind", Source: st.path(m.Destination), Options: opts}
}

func (st *stage) path(destination string) string {
	return filepath.Join(st.Dir, filepath.Base(destination))
}

// set makes the stage. It is called in init's life, where the mount namespace is
// the container's own but still shows what the host's does.
func (st *stage) set() error {
	if st.Dev == nil && st.Sys == nil && st.Cgroup == nil && len(st.Files) == 0 {
		return nil
	}
	// libcontainer does the same later. Not before: what is mounted from here
	// on would be seen on the host.
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	for _, f := range st.Files {
		if err := f.set(); err != nil {
			return err
		}
	}
	if st.Dev == nil && st.Sys == nil && st.Cgroup == nil {
		return nil
	}
	if err := mountAt(specs.Mount{Type: "tmpfs", Source: "stage", Options: []string{"mode=700"}}, st.Dir); err != nil {
		return err
	}
	if st.Dev != nil {
		if err := st.setDev(st.path("/dev")); err != nil {
			return fmt.Errorf("stage /dev: %w", err)
		}
	}
	if st.Sys != nil {
		if err := mkdirAndMount(*st.Sys, st.path(sysRoot)); err != nil {
			return fmt.Errorf("stage %s: %w", sysRoot, err)
		}
	}
	if st.Cgroup != nil {
		if err := st.setCgroup(st.path(cgroupRoot)); err != nil {
			return fmt.Errorf("stage %s: %w", cgroupRoot, err)
		}
	}
	return nil
}

// devNodes are the devices of every container: Linux's numbers for them.
var devNodes = []struct {
	name         string
	major, minor uint32
}{{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}}

var devLinks = map[string]string{
	"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1",
	"stderr": "/proc/self/fd/2",
}

func (st *stage) setDev(dir string) error {
	if err := mkdirAndMount(*st.Dev, dir); err != nil {
		return err
	}
	for _, n := range devNodes {
		p := filepath.Join(dir, n.name)
		if err := unix.Mknod(p, unix.S_IFCHR|0o666, int(unix.Mkdev(n.major, n.minor))); err != nil {
			return &os.PathError{Op: "mknod", Path: p, Err: err}
		}
		if err := os.Chmod(p, 0o666); err != nil { // whatever the umask is
			return err
		}
	}
	for name, target := range devLinks {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	if _, err := os.Lstat("/proc/kcore"); err == nil {
		if err := os.Symlink("/proc/kcore", filepath.Join(dir, "core")); err != nil {
			return err
		}
	}
	for _, m := range st.OnDev {
		if err := mkdirAndMount(m, filepath.Join(dir, filepath.Base(m.Destination))); err != nil {
			return err
		}
	}
	return nil
}

// setCgroup shows the container its own group of each hierarchy. Init is in them
// by now.
func (st *stage) setCgroup(dir string) error {
	flags, _ := mountOptions(st.Cgroup.Options)
	own, err := cgroups.ParseCgroupFile("/proc/self/cgroup")
	if err != nil {
		return err
	}
	top := specs.Mount{Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "noexec", "mode=755"}}
	if err := mkdirAndMount(top, dir); err != nil {
		return err
	}
	for _, t := range st.Trees {
		group, err := t.GetOwnCgroup(own)
		if err != nil {
			return err
		}
		below, err := filepath.Rel(t.Root, group)
		if err != nil {
			return err
		}
		name := filepath.Base(t.Mountpoint)
		at := filepath.Join(dir, name)
		source := filepath.Join(t.Mountpoint, below)
		m := specs.Mount{Type: "bind", Source: source, Options: []string{"rbind", "rprivate"}}
		if err := mkdirAndMount(m, at); err != nil {
			return err
		}
		if err := unix.Mount("", at, "", flags|unix.MS_BIND|unix.MS_REMOUNT, ""); err != nil {
			return &os.PathError{Op: "remount", Path: at, Err: err}
		}
		if !strings.Contains(name, ",") {
			continue
		}
		for one := range strings.SplitSeq(name, ",") {
			if err := os.Symlink(name, filepath.Join(dir, one)); err != nil && !errors.Is(err, os.ErrExist) {
				return err
			}
		}
	}
	return nil
}

func mkdirAndMount(m specs.Mount, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return mountAt(m, dir)
}

func mountAt(m specs.Mount, dir string) error {
	flags, data := mountOptions(m.Options)
	propagation := flags & unix.MS_PRIVATE
	if err := unix.Mount(m.Source, dir, m.Type, flags&^unix.MS_PRIVATE, data); err != nil {
		return &os.PathError{Op: "mount", Path: dir, Err: err}
	}
	if propagation == 0 {
		return nil
	}
	return os.NewSyscallError("mount", unix.Mount("", dir, "", unix.MS_PRIVATE|unix.MS_REC, ""))
}

// mountFlags are the options of what is staged; others are for the file system.
var mountFlags = map[string]uintptr{
	"ro": unix.MS_RDONLY, "rw": 0, "nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV, "noexec": unix.MS_NOEXEC,
	"strictatime": unix.MS_STRICTATIME, "relatime": unix.MS_RELATIME, "rbind": unix.MS_BIND | unix.MS_REC,
	"rprivate": unix.MS_PRIVATE,
}

func mountOptions(options []string) (flags uintptr, data string) {
	var rest []string
	for _, o := range options {
		if f, ok := mountFlags[o]; ok {
			flags |= f
		} else {
			rest = append(rest, o)
		}
	}
	return flags, strings.Join(rest, ",")
}
