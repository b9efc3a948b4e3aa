package layer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/filetree"
	"github.com/berth-node/berth/internal/openat"
)

// within keeps the kernel's path walk below the root of the layer: absolute links and .. end at that root as in a
// chroot, and links of /proc and mount points are refused.
const within = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// maxOpen directories stay open between entries. Archives go through a tree directory by directory, so few are enough.
const maxOpen = 64

var errEscapes = errors.New("name leads out of the image")

// tree is a directory that files are put into without ever leaving it.
type tree struct {
	root   int
	open   map[string]handle
	stale  []handle // closed by reap, because somebody up the stack may be using one
	usage  Usage
	rounds int64 // size of a block, for usage
}

// handle is an open directory. In one that is setgid, new files get its group.
type handle struct {
	fd     int
	setgid bool
}

func openTree(dir string) (*tree, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", dir, err)
	}
	t := &tree{root: fd, open: map[string]handle{}, rounds: 4096}
	return t, nil
}

func (t *tree) close() {
	t.forget()
	t.reap()
	unix.Close(t.root)
}

// forget has directories looked up again, because one may not be any more where it was found.
func (t *tree) forget() {
	for _, h := range t.open {
		t.stale = append(t.stale, h)
	}
	clear(t.open)
}

// reap closes directories that were forgotten; nobody has a handle at that time.
func (t *tree) reap() {
	for _, h := range t.stale {
		unix.Close(h.fd)
	}
	t.stale = t.stale[:0]
}

// clean makes the name of an entry relative to the root; "" is the root itself.
func clean(name string) (string, error) {
	if len(name) >= unix.PathMax {
		return "", unix.ENAMETOOLONG
	}
	name = path.Clean(strings.TrimLeft(name, "/"))
	if name == "." {
		return "", nil
	}
	if name == ".." || strings.HasPrefix(name, "../") {
		return "", errEscapes
	}
	return name, nil
}

// split is path.Split without the slash.
func split(name string) (dir, base string) {
	i := strings.LastIndexByte(name, '/')
	return name[:max(i, 0)], name[i+1:]
}

// openat opens name below the root, following links inside it.
func (t *tree) openat(name string, flags uint64) (int, error) {
	if name == "" {
		name = "."
	}
	return openat.Open(t.root, name, &unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: within})
}

// find opens the directory name; it stays open until many others have been.
func (t *tree) find(name string) (handle, error) {
	if h, ok := t.open[name]; ok {
		return h, nil
	}
	fd, err := t.openat(name, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return handle{}, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return handle{}, err
	}
	if len(t.open) >= maxOpen {
		t.forget()
	}
	h := handle{fd: fd, setgid: st.Mode&unix.S_ISGID != 0}
	t.open[name] = h
	return h, nil
}

// stat is lstat of base in dir.
func stat(dir int, base string) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	return st, err
}

func isDir(st unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }

// isWhiteout knows the device by which OverlayFS remembers a deletion.
func isWhiteout(st unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0 }

func (t *tree) blocks(size int64) uint64 { return uint64((size + t.rounds - 1) / t.rounds * t.rounds) }

// added counts a new file or directory.
func (t *tree) added(size int64) {
	t.usage.Inodes++
	t.usage.Bytes += t.blocks(size)
}

// remove deletes base in dir, whatever it is, with all below it. It is no error when there is nothing.
func (t *tree) remove(dir int, base string) error {
	if st, err := stat(dir, base); err == nil && isDir(st) {
		t.forget()
	}
	return filetree.RemoveAt(context.Background(), dir, base, "", filetree.Removal{Gone: t.gone})
}

// gone takes what was removed off what was written.
func (t *tree) gone(st *unix.Stat_t) {
	if t.usage.Inodes == 0 || !isDir(*st) && st.Nlink > 1 {
		return
	}
	size := st.Size
	if isDir(*st) {
		size = 1
	}
	t.usage.Inodes--
	t.usage.Bytes -= min(t.usage.Bytes, t.blocks(size))
}

func openDir(dir int, base string) (int, error) {
	return unix.Openat(dir, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// list returns all names at once: a directory that changes while it is read may show a name twice or not at all.
func list(fd int, name string) ([]string, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(own), name)
	defer f.Close()
	return f.Readdirnames(-1)
}

// Empty deletes everything in dir.
func Empty(ctx context.Context, dir string) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	defer unix.Close(fd)
	return filetree.Empty(ctx, fd, dir, filetree.Removal{})
}
