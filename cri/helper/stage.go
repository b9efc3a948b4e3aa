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

// A stage holds what a container sees beside its image, as far as it can be made without libcontainer. That trusts
// nothing below a root file system, and looks up, checks and reopens each place on its own, in a hundred system calls
// a mount. Here a place has been looked up once, and nothing of the container runs yet that could move it. Init makes
// the stage in its own mount namespace, before libcontainer takes the root as it is, with all that is mounted in it.
//
// What libcontainer would make something of by itself, if it were not told of it, is put together in a directory of the
// host, and bound: /dev, and the groups in a /sys that is not the stage's.
type stage struct {
	Dir    string // covered for it, in init's namespace only
	Dev    *specs.Mount
	OnDev  []specs.Mount // below /dev
	Root   []specs.Mount // their destinations are paths of the host, below the container's root
	Cgroup *specs.Mount  // its destination, too
	Trees  []cgroups.Mount
}

const (
	procRoot   = "/proc"
	devRoot    = "/dev"
	sysRoot    = "/sys"
	cgroupRoot = "/sys/fs/cgroup"
)

// stageOf takes out of a config what a stage can hold, and leaves the rest to libcontainer. Nothing is staged that
// depends on the container: ids of its own, labels, devices. Nor for a root that mounts travel through to the host,
// since the stage has to be cut off from it first.
func stageOf(spec *specs.Spec, dir, root string) stage {
	l := spec.Linux
	has := func(kind specs.LinuxNamespaceType) bool {
		return slices.ContainsFunc(l.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == kind })
	}
	if l == nil || l.MountLabel != "" || strings.Contains(l.RootfsPropagation, "shared") || has(specs.UserNamespace) ||
		!has(specs.MountNamespace) {
		return stage{Dir: dir}
	}
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return stage{Dir: dir} // libcontainer will tell
	}
	defer unix.Close(fd)
	t := taker{stage: stage{Dir: dir}, root: root, fd: fd, linux: l, cgroupns: has(specs.CgroupNamespace)}
	for _, m := range spec.Mounts {
		if d := filepath.Clean("/" + m.Destination); !t.take(m, d) {
			t.leave(m, d)
		}
	}
	spec.Mounts = t.rest
	return t.stage
}

// bind is the mount by which libcontainer shows a part of the stage's directory.
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
	if st.Dev == nil && st.Cgroup == nil && len(st.Root) == 0 {
		return nil
	}
	// libcontainer does the same later. Not before: what is mounted from here
	// on would be seen on the host.
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	for _, m := range st.Root {
		if err := show(m, m.Destination); err != nil {
			return err
		}
	}
	if err := mountAt(specs.Mount{Type: "tmpfs", Source: "stage", Options: []string{"mode=700"}}, st.Dir); err != nil {
		return err
	}
	if st.Dev != nil {
		if err := st.setDev(st.path(devRoot)); err != nil {
			return fmt.Errorf("stage %s: %w", devRoot, err)
		}
	}
	if st.Cgroup != nil {
		if err := st.setCgroup(st.Cgroup.Destination); err != nil {
			return fmt.Errorf("stage %s: %w", cgroupRoot, err)
		}
	}
	return nil
}

type devNode struct {
	name         string
	major, minor uint32
}

// devNodes are the devices of every container: Linux's numbers for them.
var devNodes = []devNode{{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}}

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
		at := filepath.Join(dir, filepath.Base(m.Destination))
		if ownOnDev(m) {
			if err := mkdirAndMount(m, at); err != nil {
				return err
			}
			continue
		}
		if err := makePlaceLike(m.Source, at); err != nil {
			return err
		}
		if err := show(m, at); err != nil {
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
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := mountAt(top, dir); err != nil {
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
		if err := remount(at, flags); err != nil {
			return err
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
	return remount(dir, flags)
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
