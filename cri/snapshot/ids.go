package snapshot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// IDs are the ids that a pod has to itself: what belongs to root in a snapshot belongs to UID and GID where it is
// mounted, and so on for all other ids.
type IDs struct {
	UserNS   string // path of a user namespace with that mapping
	UID, GID uint32
}

// clone returns a mount of dir, attached nowhere, that shows files with these ids.
func (i *IDs) clone(dir string) (*os.File, error) {
	ns, err := os.Open(i.UserNS)
	if err != nil {
		return nil, fmt.Errorf("open user namespace: %w", err)
	}
	defer ns.Close()
	fd, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", dir, err)
	}
	f := os.NewFile(uintptr(fd), dir)
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, attr); err != nil {
		f.Close()
		return nil, fmt.Errorf("map the ids of %s: %w", dir, err)
	}
	return f, nil
}

// own gives dir to whom another directory belongs when it is mapped.
func (i *IDs) own(dir, as string) error {
	var st unix.Stat_t
	if err := unix.Lstat(as, &st); err != nil {
		return fmt.Errorf("stat %s: %w", as, err)
	}
	if err := os.Lchown(dir, int(i.UID+st.Uid), int(i.GID+st.Gid)); err != nil {
		return fmt.Errorf("give directory to the pod: %w", err)
	}
	return unix.Chmod(dir, st.Mode&0o7777) // the change of owner takes away some of it
}

// overlayMapped maps the layers one by one, since the kernel cannot map the stack. What is written is not mapped: it
// has the pod's ids on the disk too, and so has the root directory, which is the upper one.
func (m Mount) overlayMapped(target string) error {
	lowers, rest, _ := m.split()
	for _, o := range rest {
		if upper, ok := strings.CutPrefix(o, "upperdir="); ok {
			if err := m.IDs.own(upper, lowers[0]); err != nil {
				return err
			}
		}
	}
	var layers []*os.File
	for _, l := range lowers {
		f, err := m.IDs.clone(l)
		if err != nil {
			return err
		}
		defer f.Close()
		layers = append(layers, f)
	}
	err := m.overlayOf(layers, target)
	if err == nil {
		return nil
	}
	for _, o := range rest {
		// What failed may have come as far as to mark the directory as in use by a volatile mount.
		if work, ok := strings.CutPrefix(o, "workdir="); ok {
			if err := os.RemoveAll(filepath.Join(work, "work", "incompat")); err != nil {
				return err
			}
		}
	}
	if apartErr := m.overlayApart(layers, target); apartErr != nil {
		return fmt.Errorf("%w (and apart: %w)", err, apartErr)
	}
	return nil
}

// overlayOf uses the layers as they are, attached nowhere, which kernels let one do from 6.15 on. They are given as
// what is open: a path in /proc would stand in the container's table of mounts, where programs that look for mounts of
// /proc find it.
func (m Mount) overlayOf(layers []*os.File, target string) error {
	return m.overlayNew(target, layers...)
}

// overlayApart is for older kernels. The layers are attached in mounts of the call's own, so nobody else sees
// them, and nothing of them is left when this process is killed; the overlay made there is brought over.
func (m Mount) overlayApart(layers []*os.File, target string) error {
	target, err := filepath.Abs(target)
	if err != nil {
		return err
	}
	mnt := -1
	err = inOwnMounts(func() (err error) {
		mnt, err = m.mountApart(layers, target)
		return err
	})
	if err != nil {
		return err
	}
	defer unix.Close(mnt)
	return attach(mnt, target)
}

// mountApart changes the mounts and the directory of its thread.
func (m Mount) mountApart(layers []*os.File, target string) (int, error) {
	if err := unix.Mount("layers", target, "tmpfs", 0, "mode=0700"); err != nil {
		return -1, fmt.Errorf("mount tmpfs: %w", err)
	}
	if err := unix.Chdir(target); err != nil {
		return -1, err
	}
	_, rest, ro := m.split()
	var names []string // relative and short, since all of them have to fit into a page
	for i, f := range layers {
		name := strconv.Itoa(i)
		if err := unix.Mkdir(name, 0o700); err != nil {
			return -1, err
		}
		if err := attach(int(f.Fd()), name); err != nil {
			return -1, err
		}
		names = append(names, name)
	}
	var flags uintptr
	if ro {
		flags = unix.MS_RDONLY
	}
	data := strings.Join(append([]string{"lowerdir=" + strings.Join(names, ":")}, rest...), ",")
	if err := unix.Mount(m.Source, target, "overlay", flags, data); err != nil {
		return -1, err
	}
	mnt, err := unix.OpenTree(unix.AT_FDCWD, target, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", target, err)
	}
	return mnt, nil
}

// TryIDs shows whether layers below root can be mounted with other ids, as a pod with a user namespace needs it.
// Kernels can where the filesystem can.
func TryIDs(root string, ids IDs) error {
	return inOwnMounts(func() error { return tryIDs(root, ids) })
}

func tryIDs(root string, ids IDs) (err error) {
	dir := filepath.Join(root, "probe-ids")
	at := filepath.Join(dir, "m")
	end := func() error { return os.RemoveAll(dir) }
	if err := end(); err != nil { // of a trial that was cut off
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	for _, d := range []string{"a", "b", "m"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return err
		}
	}
	m := Mount{Type: "overlay", Source: "overlay", IDs: &ids, Options: append([]string{
		"ro", "lowerdir=" + filepath.Join(dir, "a") + ":" + filepath.Join(dir, "b"),
	}, overlayOptions()...)}
	f, err := m.detached(at) // so that a crash leaves no mount
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if st.Uid != ids.UID {
		return fmt.Errorf("a directory of root is shown as of user %d, not %d", st.Uid, ids.UID)
	}
	return nil
}
