package cni

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// pins is the directory where network namespaces are held by bind mounts, <dir>/<sandbox ID>.
type pins struct {
	dir  string
	home *os.File // the namespace of this process
}

// openPins makes dir a shared mount of its own, as `ip netns` does with its directory: a process that copies the mount
// table (a service with private mounts) would hold the pods' namespaces for as long as it lives, if unmounting did not
// reach it.
func openPins(dir string, home *os.File) (*pins, error) {
	if err := ownMount(dir); err != nil {
		return nil, err
	}
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		return nil, fmt.Errorf("share %s: %w", dir, err)
	}
	return &pins{dir: dir, home: home}, nil
}

// ownMount makes dir a mount point: of a tmpfs, unless it is on one already. What is kept there means nothing after a
// boot, and new files on a disk are slow just when pods come and go: ext4 does not use the inode of a deleted file
// again for a minute, and searches past all of those for each new one, up to a millisecond.
func ownMount(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW, 0, &st); err != nil {
		return fmt.Errorf("stat %s: %w", dir, err)
	}
	if st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return nil
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("stat filesystem of %s: %w", dir, err)
	}
	if fs.Type == unix.TMPFS_MAGIC {
		if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
		return nil
	}
	if err := unix.Mount("berth", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755"); err != nil {
		return fmt.Errorf("mount %s: %w", dir, err)
	}
	return nil
}

// dropMount undoes ownMount.
func dropMount(dir string) error {
	if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) &&
		!errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}

func (p *pins) path(id string) (string, error) {
	if id == "" || id == "." || id == ".." || strings.ContainsAny(id, "/\x00") {
		return "", fmt.Errorf("sandbox ID %q cannot be a file name", id)
	}
	return filepath.Join(p.dir, id), nil
}

// create makes a new network namespace with lo up and pins it; one that is pinned already stays.
func (p *pins) create(id string) (string, error) {
	return p.pin(id, func() error { return unix.Unshare(unix.CLONE_NEWNET) })
}

// adopt is create with a namespace that somebody else has made.
func (p *pins) adopt(id, from string) (string, error) {
	return p.pin(id, func() error {
		fd, err := unix.Open(from, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Setns(fd, unix.CLONE_NEWNET)
	})
}

// pin pins the namespace that enter brings a thread into.
func (p *pins) pin(id string, enter func() error) (string, error) {
	path, err := p.path(id)
	if err != nil {
		return "", fmt.Errorf("create network namespace: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	switch {
	case err == nil:
		f.Close()
	case errors.Is(err, fs.ErrExist):
		var st unix.Statfs_t
		if err := unix.Statfs(path, &st); err == nil && st.Type == unix.NSFS_MAGIC {
			return path, nil
		}
	default:
		return "", fmt.Errorf("create network namespace: %w", err)
	}
	done := make(chan error, 1)
	go func() { done <- p.enter(path, enter) }()
	if err := <-done; err != nil {
		return "", fmt.Errorf("create network namespace %s: %w", id, errors.Join(err, p.remove(id)))
	}
	return path, nil
}

// enter runs on a goroutine of its own; see inNetNS for the thread.
func (p *pins) enter(path string, enter func() error) error {
	runtime.LockOSThread()
	if err := enter(); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter: %w", err)
	}
	err := loopbackUp()
	if err == nil {
		if err = unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
			err = fmt.Errorf("pin: %w", err)
		}
	}
	if back := unix.Setns(int(p.home.Fd()), unix.CLONE_NEWNET); back == nil {
		runtime.UnlockOSThread()
	}
	return err
}

// loopbackUp sets lo of the current namespace up.
func loopbackUp() error {
	r, err := openRTNL(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer r.close()
	q := linkRequest(0, true)
	q.AddData(nameAttr("lo"))
	if err := r.do(nil, q); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	return nil
}

// remove unpins a namespace. The kernel takes it down when its last process has gone, in its own time.
func (p *pins) remove(id string) error {
	path, err := p.path(id)
	if err != nil {
		return fmt.Errorf("remove network namespace: %w", err)
	}
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break // not mounted (any more)
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("unpin network namespace %s: %w", id, err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove network namespace %s: %w", id, err)
	}
	return nil
}

// list returns the IDs that have a pin, or what a crash left of one.
func (p *pins) list() ([]string, error) {
	entries, err := os.ReadDir(p.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	ids := make([]string, len(entries))
	for i, e := range entries {
		ids[i] = e.Name()
	}
	return ids, nil
}
