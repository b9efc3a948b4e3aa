package volume

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mountsUnder lists where something is mounted at dir and below it, a path once for each mount on it.
func mountsUnder(dir string) ([]string, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	return parseMounts(data, dir)
}

func parseMounts(data []byte, dir string) ([]string, error) {
	var out []string
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		// 36 35 98:0 /root-in-fs /mount/point rw,noatime master:1 - ext3 /dev/root rw
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		path := unescape(fields[4])
		if path == dir || strings.HasPrefix(path, dir+"/") {
			out = append(out, path)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	return out, nil
}

// unescape undoes the kernel's \ooo for white space and backslashes.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// fewEntries bounds how much of a tree unmounted looks at: about what reading the mounts of a node with a few pods costs.
const fewEntries = 64

// unmounted says whether it has seen that nothing is mounted at dir or below. Most pods have a handful of files there, and the
// kernel's list of mounts is as long as the node has pods.
func unmounted(dir string) bool {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	left := fewEntries
	root, err := isMountFD(fd)
	return unmountedBelow(fd, &left) && err == nil && !root
}

// unmountedBelow is unmounted for an open directory, which it closes. left is how many entries it may still look at.
func unmountedBelow(fd int, left *int) bool {
	d := os.NewFile(uintptr(fd), "")
	defer d.Close()
	names, err := d.Readdirnames(*left + 1)
	if len(names) > *left || err != nil && !errors.Is(err, io.EOF) {
		return false
	}
	*left -= len(names)
	for _, name := range names {
		child, err := openSame(int(d.Fd()), name) // of a mount, also on a file, this is EXDEV
		if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			continue
		}
		if err != nil || !unmountedBelow(child, left) {
			return false
		}
	}
	return true
}

// maxPasses bounds how many mounts may lie on top of each other, since each pass takes away the topmost ones.
const maxPasses = 50

// unmountUnder unmounts everything at dir and below it. The caller has resolved the links in dir, as the kernel does.
func unmountUnder(dir string) error {
	if unmounted(dir) {
		return nil
	}
	for range maxPasses {
		mounts, err := mountsUnder(dir)
		if err != nil || len(mounts) == 0 {
			return err
		}
		slices.Sort(mounts)
		paths := slices.Compact(mounts)
		// First each mount is cut off from its peers: a bind mount of a directory of the host is one of them, and an unmount
		// below it would reach the host's own mount there.
		for _, p := range paths {
			if err := atMount(p, makePrivate); err != nil {
				return fmt.Errorf("make mount %s private: %w", p, err)
			}
		}
		// What is below comes later in order, and has to go first.
		slices.Reverse(paths)
		for _, p := range paths {
			if err := atMount(p, detach); err != nil {
				return fmt.Errorf("unmount %s: %w", p, err)
			}
		}
	}
	return fmt.Errorf("unmount %s: mounts keep coming back", dir)
}

func makePrivate(fd int) error {
	return unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Propagation: unix.MS_PRIVATE})
}

// detach unmounts lazily, since the descriptor itself keeps the mount busy, as would a shell that stands in it.
func detach(fd int) error {
	return unix.Unmount(fmt.Sprintf("/proc/self/fd/%d", fd), unix.MNT_DETACH)
}

// atMount calls act for the topmost mount at path. The path may lead through directories that a container could write to, so
// its end is held by a descriptor that was reached without following any link. A mount that is gone, or covered by
// another one above it, is left out.
func atMount(path string, act func(fd int) error) error {
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if root, err := isMountFD(fd); err != nil || !root {
		return err
	}
	return act(fd)
}

// isMount says whether something is mounted at path itself.
func isMount(path string) (bool, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(fd)
	return isMountFD(fd)
}

func isMountFD(fd int) (bool, error) {
	var st unix.Statx_t
	// Without a word to the server of a network file system, which may be gone.
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW|unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &st); err != nil {
		return false, fmt.Errorf("statx: %w", err)
	}
	if st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return false, errors.New("the kernel does not tell mount points (it is older than 5.8)")
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}
