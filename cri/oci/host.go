package oci

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/sys/capability"
	"golang.org/x/sys/unix"
)

// ReadHost looks at this process and its kernel. What depends on the cgroup hierarchy is the caller's to fill in.
func ReadHost() (Host, error) {
	h := Host{AppArmor: isYes("/sys/module/apparmor/parameters/enabled"), SELinux: labels()}
	var err error
	if h.Hostname, err = os.Hostname(); err != nil {
		return h, fmt.Errorf("read hostname: %w", err)
	}
	caps, err := capability.NewPid2(0)
	if err != nil {
		return h, fmt.Errorf("read capabilities: %w", err)
	}
	if err := caps.Load(); err != nil {
		return h, fmt.Errorf("read capabilities: %w", err)
	}
	known, err := capability.ListSupported()
	if err != nil {
		return h, fmt.Errorf("read capabilities: %w", err)
	}
	for _, c := range known {
		if caps.Get(capability.PERMITTED, c) {
			h.Capabilities = append(h.Capabilities, "CAP_"+strings.ToUpper(c.String()))
		}
	}
	h.OOMScoreAdjMin = -1000
	if !caps.Get(capability.PERMITTED, capability.CAP_SYS_RESOURCE) {
		b, err := os.ReadFile("/proc/self/oom_score_adj")
		if err != nil {
			return h, fmt.Errorf("read own oom_score_adj: %w", err)
		}
		if h.OOMScoreAdjMin, err = strconv.Atoi(string(bytes.TrimSpace(b))); err != nil {
			return h, fmt.Errorf("read own oom_score_adj: %w", err)
		}
	}
	return h, nil
}

func isYes(path string) bool {
	b, err := os.ReadFile(path)
	return err == nil && strings.HasPrefix(string(b), "Y")
}

// labels says whether SELinux runs, and has a policy: without one it takes no label, and every process has the kernel's
// own.
func labels() bool {
	if _, err := os.Stat("/sys/fs/selinux/enforce"); err != nil {
		return false
	}
	b, err := os.ReadFile("/proc/self/attr/current")
	return err == nil && string(bytes.TrimRight(b, "\x00\n")) != "kernel"
}

// maxFile is more than any honest passwd or group file has.
const maxFile = 4 << 20

// ReadFile reads a small file of a root file system that is not to be trusted: no symlink leads out of root, and only
// regular files are read. It returns nil when there is no such file.
func ReadFile(root, path string) ([]byte, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", root, err)
	}
	defer unix.Close(dir)
	how := unix.OpenHow{
		// Only to look at it: the mere opening of a device does something to it, and of a FIFO to who waits at its
		// other end.
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	path = strings.TrimPrefix(filepath.Clean(path), "/")
	fd := -1
	// The kernel gives up with EAGAIN when a rename races with the walk.
	for range 16 {
		if fd, err = unix.Openat2(dir, path, &how); !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	switch {
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("open %s in %s: %w", path, root, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("look at %s in %s: %w", path, root, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, nil
	}
	f, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(fd), os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s in %s: %w", path, root, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read %s in %s: %w", path, root, err)
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("read %s in %s: it is over %d bytes", path, root, maxFile)
	}
	return b, nil
}
