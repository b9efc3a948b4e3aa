// Package rootfs reads files of a container's root file system, which are anybody's, and what they say of users and
// groups.
package rootfs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/openat"
)

// MaxFile is more than any honest file has that is read here.
const MaxFile = 4 << 20

// Open opens a file of a root file system that is not to be trusted: no symlink leads out of root, and only regular
// files are opened. It returns nil where there is no such file. Without a path it is root itself.
func Open(root, path string) (*os.File, error) {
	// Only to look at it: the mere opening of a device does something to it, and of a FIFO to who waits at its other
	// end.
	const look = unix.O_PATH | unix.O_CLOEXEC
	fd, err := unix.Open(root, look, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", root, err)
	}
	defer func() { unix.Close(fd) }()
	if path = strings.TrimPrefix(filepath.Clean("/"+path), "/"); path != "" {
		below, err := openBelow(fd, path, look)
		switch {
		case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP):
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("open %s in %s: %w", path, root, err)
		}
		unix.Close(fd)
		fd = below
	}
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
	return f, nil
}

func openBelow(dir int, path string, flags uint64) (fd int, err error) {
	return openat.Open(dir, path, &unix.OpenHow{Flags: flags, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
}

// ReadFile reads what [Open] opens; nil where there is no such file.
func ReadFile(root, path string) ([]byte, error) {
	f, err := Open(root, path)
	if f == nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read %s in %s: %w", path, root, err)
	}
	if len(b) > MaxFile {
		return nil, fmt.Errorf("read %s in %s: it is over %d bytes", path, root, MaxFile)
	}
	return b, nil
}
