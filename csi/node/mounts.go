package node

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

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
	out := map[string]bool{}
	in := bufio.NewScanner(r)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		fields := strings.SplitN(in.Text(), " ", 6) // id, parent, device, root, mount point, ...
		if len(fields) == 6 {
			out[unescape(fields[4])] = true
		}
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	return out, nil
}

// unescape undoes the kernel's octal escapes of blanks, tabs, line ends and backslashes.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+4 <= len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
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
