package main

import (
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/openat"
)

// isPlain says whether a mount shows a regular file or a directory of the host and nothing else is to be known of it.
func isPlain(m specs.Mount) bool {
	if !isBind(m) || len(m.UIDMappings)+len(m.GIDMappings) > 0 || !slices.Contains(m.Options, "rprivate") ||
		!slices.Contains(m.Options, "rw") && !slices.Contains(m.Options, "ro") {
		return false
	}
	for _, o := range m.Options {
		if o != "rbind" && o != "rprivate" && o != "rw" && o != "ro" {
			return false
		}
	}
	fi, err := os.Stat(m.Source)
	return err == nil && (fi.Mode().IsRegular() || fi.IsDir())
}

func isBind(m specs.Mount) bool {
	return m.Type == "bind"
}

// isSystem says that path is where the machine shows itself.
func isSystem(path string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return first == "proc" || first == "dev" || first == "sys"
}

// related says whether one of two clean paths is at or below the other.
func related(a, b string) bool {
	return a == b || strings.HasPrefix(a, strings.TrimSuffix(b, "/")+"/") ||
		strings.HasPrefix(b, strings.TrimSuffix(a, "/")+"/")
}

// beneath opens a place, of which no part may be a symbolic link or another mount. libcontainer knows what to do with
// those, and with kernels before 5.6, which cannot look up like this.
func beneath(dir int, path string, flags, mode uint64) (int, error) {
	return openat.Open(dir, path, &unix.OpenHow{
		Flags:   flags | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Mode:    mode,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
}

// place says that at the clean path below root there is a directory or a regular file for a mount of such a one, and
// makes an empty one where there is none.
func place(root int, path string, dir bool) bool {
	path = strings.TrimPrefix(path, "/")
	if path == "" {
		return false
	}
	fd, err := beneath(root, path, unix.O_PATH, 0)
	if errors.Is(err, unix.ENOENT) {
		fd, err = makePlace(root, path, dir)
	}
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return false
	}
	return dir && st.Mode&unix.S_IFMT == unix.S_IFDIR || !dir && st.Mode&unix.S_IFMT == unix.S_IFREG
}

// makePlace makes what there is not of a path, as libcontainer would.
func makePlace(root int, path string, dir bool) (int, error) {
	fd, err := unix.FcntlInt(uintptr(root), unix.F_DUPFD_CLOEXEC, 0)
	for path != "" && err == nil {
		name, below, _ := strings.Cut(path, "/")
		var next int
		next, err = makeStep(fd, name, dir || below != "")
		unix.Close(fd)
		fd, path = next, below
	}
	return fd, err
}

func makeStep(at int, name string, dir bool) (int, error) {
	fd, err := beneath(at, name, unix.O_PATH, 0)
	switch {
	case !errors.Is(err, unix.ENOENT):
		return fd, err
	case !dir:
		return beneath(at, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o644)
	}
	if err := unix.Mkdirat(at, name, 0o755); err != nil {
		return -1, err
	}
	return beneath(at, name, unix.O_PATH, 0)
}

// makePlaceLike makes an empty file or directory for a mount of source, where there is none.
func makePlaceLike(source, at string) error {
	fi, err := os.Stat(source)
	if err != nil {
		return err
	}
	if fi.IsDir() {
		return os.Mkdir(at, 0o755)
	}
	f, err := os.OpenFile(at, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// show mounts m at a place of the host. What is bound keeps the flags of where it comes from until it is mounted again.
func show(m specs.Mount, at string) error {
	flags, _ := mountOptions(m.Options)
	if m.Type == remounted {
		return remount(at, flags)
	}
	if err := mountAt(m, at); err != nil || !isBind(m) {
		return err
	}
	return remount(at, flags&^(unix.MS_BIND|unix.MS_REC|unix.MS_PRIVATE))
}

// remount gives a mount new flags, which are its own and not those of the file system.
func remount(at string, flags uintptr) error {
	if err := unix.Mount("", at, "", flags|unix.MS_BIND|unix.MS_REMOUNT, ""); err != nil {
		return &os.PathError{Op: "remount", Path: at, Err: err}
	}
	return nil
}
