package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
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

// isMount says whether something is mounted on path, without asking its file system: nothing is wanted of it but what
// the kernel has.
func isMount(path string) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT|unix.AT_SYMLINK_NOFOLLOW, 0, &st)
	return err == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
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
		mounted <- isMount(path)
		return nil
	})
	return done{Mount: err == nil && <-mounted}
}

// clear has nothing be mounted at path, and no mount point be there: what a driver must have done that has undone a
// volume.
func (u undoing) clear(ctx context.Context, path string) error {
	mounts, err := mountPoints()
	if err != nil {
		return err
	}
	if mounts[path] {
		u.m.log.Warn("driver has left a mount that it has undone", "path", path)
		err := u.patiently(ctx, "unmount "+path, func() error { return unix.Unmount(path, unix.UMOUNT_NOFOLLOW) })
		if err != nil && !errors.Is(err, unix.EINVAL) { // another one has unmounted it
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
	return removePoint(path)
}
