// Package mount mounts and unmounts for the volumes of pods. The kernel is the truth of what is mounted: nothing here
// is recorded, every act can be repeated, and none follows a link that a container could have made.
package mount

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/openat"
	"github.com/berth-node/berth/internal/patience"
)

// Under lists where something is mounted at dir and below it, a path once for each mount on it.
func Under(dir string) ([]string, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	var out []string
	for _, m := range mounts {
		out = append(out, m.Mountpoint)
	}
	return out, nil
}

// fewEntries bounds how much of a tree is walked through: about what reading the mounts of a node with a few pods
// costs.
const fewEntries = 64

// walk is a look at a directory for what is mounted in it. Most pods have a handful of files there and a mount or two,
// and the kernel's list of mounts is as long as the node has pods.
type walk struct {
	left  int      // entries that it may still look at
	found []string // where something is mounted; what is below that is not looked at
}

// mountsIn is where something is mounted at dir and below, but for what lies in another mount there. seen is false when
// not all of it was looked at.
func mountsIn(dir string) (found []string, seen bool) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Is(err, unix.ENOENT) // most pods have no subPaths, and nothing is mounted where nothing is
	}
	if root, err := isRoot(fd); err != nil || root {
		_ = unix.Close(fd)
		return []string{dir}, err == nil
	}
	w := walk{left: fewEntries}
	seen = w.below(fd, dir)
	return w.found, seen
}

// below looks at an open directory, which it closes.
func (w *walk) below(fd int, path string) bool {
	d := os.NewFile(uintptr(fd), path)
	defer d.Close()
	names, err := d.Readdirnames(w.left + 1)
	if len(names) > w.left || err != nil && !errors.Is(err, io.EOF) {
		return false
	}
	w.left -= len(names)
	for _, name := range names {
		child, err := OpenSame(int(d.Fd()), name)
		switch at := filepath.Join(path, name); {
		case errors.Is(err, unix.EXDEV): // a mount, also on a file
			w.found = append(w.found, at)
		case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		case err != nil || !w.below(child, at):
			return false
		}
	}
	return true
}

// mountsOf is what there is to unmount next at dir and below: all mounts, or those that the others are in.
func mountsOf(dir string) ([]string, error) {
	if found, seen := mountsIn(dir); seen {
		return found, nil
	}
	return Under(dir)
}

// maxPasses bounds how many mounts may lie on top of each other, since each pass takes away the topmost ones.
const maxPasses = 50

// UnmountUnder unmounts everything at dir and below it. The caller has resolved the links in dir, as the kernel does.
func UnmountUnder(dir string) error {
	var u unmounter
	for range maxPasses {
		mounts, err := mountsOf(dir)
		if err != nil || len(mounts) == 0 {
			return err
		}
		if u.dead != nil && len(mounts) >= u.before {
			return fmt.Errorf("unmount %s: %w", dir, u.dead)
		}
		u.dead, u.before = nil, len(mounts)
		slices.Sort(mounts)
		paths := slices.Compact(mounts)
		// First each mount is cut off from its peers: a bind mount of a directory of the host is one of them, and an
		// unmount below it would reach the host's own mount there.
		for _, p := range paths {
			if err := u.do(p, makePrivate); err != nil {
				return fmt.Errorf("make mount %s private: %w", p, err)
			}
		}
		// What is below comes later in order, and has to go first.
		slices.Reverse(paths)
		for _, p := range paths {
			if err := u.do(p, detach); err != nil {
				return fmt.Errorf("unmount %s: %w", p, err)
			}
		}
	}
	return fmt.Errorf("unmount %s: mounts keep coming back", dir)
}

// answers is how long the kernel has for a mount. It waits for a file system on the way to a mount in it, which may not
// answer, and for what has to be written to it.
const answers = 10 * time.Second

// unmounter unmounts what answers. What does not is passed over: it goes with the mount that it is in.
type unmounter struct {
	calls  patience.Calls
	dead   error // of what has not answered
	before int   // how many mounts there were
}

func (u *unmounter) do(path string, act func(fd int) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), answers)
	defer cancel()
	err := u.calls.Do(ctx, path, 0, func() error { return atMount(path, act) })
	if errors.Is(err, patience.ErrNoAnswer) {
		u.dead, err = err, nil
	}
	return err
}

// makePrivate cuts off a mount and all that is mounted in it, which go with it.
func makePrivate(fd int) error {
	return unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Propagation: unix.MS_PRIVATE})
}

// detach unmounts lazily, since the descriptor itself keeps the mount busy, as would a shell that stands in it.
func detach(fd int) error {
	return unix.Unmount(fmt.Sprintf("/proc/self/fd/%d", fd), unix.MNT_DETACH)
}

// atMount calls act for the topmost mount at path. The path may lead through directories that a container could write
// to, so its end is held by a descriptor that was reached without following any link. A mount that is gone, or covered
// by another one above it, is left out.
func atMount(path string, act func(fd int) error) error {
	fd, err := openat.Open(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if root, err := isRoot(fd); err != nil || !root {
		return err
	}
	return act(fd)
}

// Is says whether something is mounted at path itself.
func Is(path string) (bool, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(fd)
	return isRoot(fd)
}

func isRoot(fd int) (bool, error) {
	var st unix.Statx_t
	// Without a word to the server of a network file system, which may be gone. Whoever wants to know nothing of the
	// file itself is also told of a FUSE that is another user's alone.
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW|unix.AT_STATX_DONT_SYNC, 0, &st); err != nil {
		return false, fmt.Errorf("statx: %w", err)
	}
	if st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return false, errors.New("the kernel does not tell mount points (it is older than 5.8)")
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// OpenSame opens a directory below dir on the same mount, following no link; "" is dir itself.
func OpenSame(dir int, name string) (int, error) {
	if name == "" {
		name = "."
	}
	return openat.Open(dir, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
}

// Memory mounts a file system in memory that is not swapped out: swapped out, its content would be on a disk after all.
// Kernels before 6.4 do not know the option.
func Memory(fsType, path, options string) error {
	err := error(unix.EINVAL)
	if fsType == "tmpfs" {
		err = unix.Mount(fsType, path, fsType, 0, options+",noswap")
	}
	if errors.Is(err, unix.EINVAL) {
		err = unix.Mount(fsType, path, fsType, 0, options)
	}
	if err != nil {
		return fmt.Errorf("mount %s (%s): %w", fsType, options, err)
	}
	return nil
}
