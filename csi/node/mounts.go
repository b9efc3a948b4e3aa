package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/openat"
)

const (
	// maxMounts is how much is read of the kernel's list of mounts, in bytes.
	maxMounts = 64 << 20
	// hangsAfter is how long an act of the kernel is waited for that asks a file system.
	hangsAfter = 10 * time.Second
)

// mountPoints are those of this mount namespace. The kernel's list asks no file system.
func mountPoints() (map[string]bool, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	defer f.Close()
	return readMountPoints(io.LimitReader(f, maxMounts))
}

func readMountPoints(r io.Reader) (map[string]bool, error) {
	mounts, err := mountinfo.GetMountsFromReader(r, nil)
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	out := make(map[string]bool, len(mounts))
	for _, m := range mounts {
		out[m.Mountpoint] = true
	}
	return out, nil
}

// look is what the kernel has of path, without its file system being asked: a mount, a link, or something else. Nothing
// is wanted but what there is in any case: a FUSE of another user's tells no more.
func look(path string) (mount, link bool) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT|unix.AT_SYMLINK_NOFOLLOW, 0, &st)
	return err == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK
}

// patiently does what may never come to an end, as with a file system whose server has gone. It is waited for for a
// while, and not begun again before it has ended after all.
func (u undoing) patiently(ctx context.Context, what string, act func() error) error {
	ctx, cancel := context.WithTimeout(ctx, hangsAfter)
	defer cancel()
	return u.m.calls.Do(ctx, what, 0, act)
}

// seen is what is to be seen of what a driver has done. What cannot be told is taken for no mount.
func (u undoing) seen(ctx context.Context, path string) done {
	mounted := make(chan bool, 1)
	err := u.patiently(ctx, "look at "+path, func() error {
		is, _ := look(path)
		mounted <- is
		return nil
	})
	return done{Mount: err == nil && <-mounted}
}

// led says whether a driver has put a link where a volume is to be: whoever goes there comes to what is somebody
// else's. A device may be one, which is looked at before it is used.
func (u undoing) led(ctx context.Context, path string, block bool) error {
	if block {
		return nil
	}
	return u.patiently(ctx, "look at "+path, func() error {
		if _, link := look(path); link {
			return fmt.Errorf("the driver has put a link at %s, and no volume: it is not followed", path)
		}
		return nil
	})
}

// maxLeft bounds how often it is looked again for mounts that a driver has left, since they may lie on each other.
const maxLeft = 50

// clear has nothing be mounted at path, nor below it, and no mount point be there: what a driver must have done that
// has undone a volume.
func (u undoing) clear(ctx context.Context, path string) error {
	err := removePoint(path)
	for range maxLeft {
		if err == nil {
			return nil
		}
		mounts, listed := mountPoints()
		if listed != nil {
			return listed
		}
		left := mountsIn(mounts, path)
		if len(left) == 0 {
			return err
		}
		u.m.log.Warn("driver has left mounts that it has undone", "path", path, "mounts", len(left))
		if err := u.cutOff(ctx, left); err != nil {
			return err
		}
		for _, at := range left {
			gone := u.patiently(ctx, "unmount "+at, func() error { return unmount(at) })
			if gone != nil {
				return fmt.Errorf("unmount %s: %w", at, gone)
			}
		}
		err = removePoint(path)
	}
	return err
}

// cutOff has the unmounting of what is mounted in others, which are given after it, reach nobody else. A mount of a
// directory of the node is one of a group of peers with the node's own, and the kernel unmounts in all of them.
func (u undoing) cutOff(ctx context.Context, mounts []string) error {
	for i, at := range mounts {
		if !slices.ContainsFunc(mounts[:i], func(in string) bool { return strings.HasPrefix(in, at+"/") }) {
			continue
		}
		if err := u.patiently(ctx, "cut off "+at, func() error { return makePrivate(at) }); err != nil {
			return fmt.Errorf("make mount %s private: %w", at, err)
		}
	}
	return nil
}

// makePrivate takes what is mounted at path, with all that is mounted in it, out of its groups of peers.
func makePrivate(path string) error {
	fd, err := openat.Open(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err == nil {
		err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Propagation: unix.MS_PRIVATE})
		_ = unix.Close(fd)
	}
	return unlessElsewhere(err)
}

// mountsIn are the mounts at path and below it, those first that are in others.
func mountsIn(mounts map[string]bool, path string) []string {
	var out []string
	for at := range mounts {
		if at == path || strings.HasPrefix(at, path+"/") {
			out = append(out, at)
		}
	}
	slices.Sort(out)
	slices.Reverse(out)
	return out
}

// unmount unmounts what is mounted at path; it is no error when nothing is. The way there may lead through what a
// container has written, and follows no link.
func unmount(path string) error {
	dir, err := openat.Open(unix.AT_FDCWD, filepath.Dir(path), &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if err == nil {
		err = unix.Unmount(fmt.Sprintf("/proc/self/fd/%d/%s", dir, filepath.Base(path)), unix.UMOUNT_NOFOLLOW)
		_ = unix.Close(dir)
	}
	return unlessElsewhere(err)
}

// unlessElsewhere is the error of an act on a mount, unless that was unmounted by somebody, or is elsewhere by now.
func unlessElsewhere(err error) error {
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		return nil
	}
	return err
}
