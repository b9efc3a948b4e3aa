// Package filetree walks, counts, copies and removes trees of files that others have made, of any depth: containers
// nest directories until paths are longer than PATH_MAX and descriptors run out.
//
// However deep a tree is, a walk holds a bounded number of descriptors: a directory above is closed meanwhile and found
// again by "..", which counts only when it has the device and inode that were left. No symbolic link is followed and no
// mount point crossed. What cannot be read or removed does not keep a walk from the rest, and an error is a line of
// bounded length.
package filetree

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/openat"
)

// kept is how many directories stay open above the one that is being read: few trees are deeper, and so most walks open
// nothing twice.
const kept = 16

// maxLost bounds how often a walk that finds a directory moved away looks for its way from the top.
const maxLost = 1000

var errLost = errors.New("directories are moved while they are walked")

// level is one directory on the way from the top to where the walk is.
type level struct {
	fd       int // -1: closed, to be found again from the one below
	dev, ino uint64
	name     string
	at       int64    // of a closed one: where reading goes on
	pending  []string // read, and not yet looked at

	removed, failed bool // since it was read from its start
}

// way is where a walk is. The lowest level belongs to the caller and is never closed.
type way struct {
	levels []level
	lost   int
	buf    *[32 << 10]byte
}

// bufs are what lists of entries are read into. Most trees have a handful of entries, and making such a buffer takes
// longer than their removal.
var bufs = sync.Pool{New: func() any { return new([32 << 10]byte) }}

func newWay(fd int, name string) *way {
	return &way{levels: []level{{fd: fd, name: name}}, buf: bufs.Get().(*[32 << 10]byte)}
}

func (w *way) top() *level { return &w.levels[len(w.levels)-1] }
func (w *way) depth() int  { return len(w.levels) - 1 }

// close closes what the walk has open, and ends it.
func (w *way) close() {
	for i := range w.levels[1:] {
		if l := &w.levels[i+1]; l.fd >= 0 {
			unix.Close(l.fd)
		}
	}
	w.levels = w.levels[:1]
	bufs.Put(w.buf)
	w.buf = nil
}

// openDir opens a directory in dir on the same mount, following no link.
func openDir(dir int, name string) (int, error) {
	return openat.Open(dir, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
}

// down enters the directory name.
func (w *way) down(name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	fd, err := openDir(w.top().fd, name)
	if err != nil {
		return st, err
	}
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return st, err
	}
	w.levels = append(w.levels, level{fd: fd, dev: st.Dev, ino: st.Ino, name: name})
	if i := w.depth() - kept; i > 0 {
		l := &w.levels[i]
		if l.at, err = unix.Seek(l.fd, 0, unix.SEEK_CUR); err == nil {
			unix.Close(l.fd)
			l.fd = -1
		}
	}
	return st, nil
}

// up leaves a directory for the one above it. Where that is not above it any more, the walk goes on in the lowest
// directory on its way that is still where it was.
func (w *way) up() error {
	child := w.top().fd
	defer unix.Close(child)
	w.levels = w.levels[:w.depth()]
	l := w.top()
	if l.fd >= 0 {
		return nil
	}
	fd, err := unix.Openat(child, "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return w.find()
	}
	if !l.is(fd) || l.resume(fd) != nil {
		unix.Close(fd)
		return w.find()
	}
	return nil
}

// is says that fd is the directory of this level.
func (l *level) is(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Dev == l.dev && st.Ino == l.ino
}

// resume has reading go on where it was. In a directory that somebody has removed meanwhile it may not: with its size
// ext4 forgets that places in it are hashes, and refuses them with EINVAL.
func (l *level) resume(fd int) error {
	_, err := unix.Seek(fd, l.at, unix.SEEK_SET)
	if err == nil {
		l.fd = fd
	}
	return err
}

// find goes from the top as far as everything is where it was.
func (w *way) find() error {
	for {
		fd, err := w.findOne()
		if err != nil {
			return err
		}
		l := w.top()
		if l.fd >= 0 || l.resume(fd) == nil {
			return nil
		}
		unix.Close(fd)
		w.levels = w.levels[:w.depth()]
	}
}

// findOne opens the uppermost directory that is where it was.
func (w *way) findOne() (int, error) {
	if w.lost++; w.lost > maxLost {
		return -1, errLost
	}
	from := 0
	for i := range w.levels {
		if w.levels[i].fd >= 0 {
			from = i
		}
	}
	fd := w.levels[from].fd
	for i := from + 1; i < len(w.levels); i++ {
		next, err := openDir(fd, w.levels[i].name)
		if err == nil && !w.levels[i].is(next) {
			unix.Close(next)
			err = unix.ENOENT
		}
		if err != nil {
			w.levels = w.levels[:i]
			break
		}
		if i-1 > from {
			unix.Close(fd)
		}
		fd = next
	}
	return fd, nil
}

// more reads names of the uppermost directory, if none are pending. It returns false at its end.
func (w *way) more() (bool, error) {
	l := w.top()
	for len(l.pending) == 0 {
		n, err := unix.ReadDirent(l.fd, w.buf[:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return false, err
		}
		_, _, l.pending = unix.ParseDirent(w.buf[:n], -1, l.pending)
	}
	return true, nil
}

func (w *way) next() string {
	l := w.top()
	name := l.pending[len(l.pending)-1]
	l.pending = l.pending[:len(l.pending)-1]
	return name
}

// maxShown bounds a path in a message.
const maxShown = 160

// path is that of name in the uppermost directory, as it is shown: the middle of a long one is left out.
func (w *way) path(name string) string {
	var b strings.Builder
	for i := range w.levels {
		b.WriteString(w.levels[i].name)
		b.WriteByte('/')
	}
	return Shown(b.String() + name)
}

// Shown is a path in quotes, for a message: escaped, since containers choose names, and without its middle where it is
// long.
func Shown(path string) string {
	if len(path) <= maxShown {
		return fmt.Sprintf("%q", path)
	}
	return fmt.Sprintf("%q...%q (%d bytes)", path[:maxShown/2], path[len(path)-maxShown/4:], len(path))
}

// passed says that an entry went meanwhile, became another kind of file, or is a mount point.
func passed(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EXDEV)
}

func isDir(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }

// Walk calls visit for everything below the directory fd, whose path is for messages: with an open directory, the name
// of an entry in it and what that is, a directory before what is in it. Directories on which something is mounted are
// left out. It goes on after what cannot be read, and returns the first such error; it ends with an error of visit or
// of ctx.
func Walk(ctx context.Context, fd int, path string, visit func(dir int, name string, st *unix.Stat_t) error) error {
	own, err := openDir(fd, ".")
	if err != nil {
		return fmt.Errorf("open %s: %w", Shown(path), err)
	}
	defer unix.Close(own)
	w := newWay(own, path)
	defer w.close()
	var first error
	note := func(verb, name string, err error) {
		if first == nil && !passed(err) {
			first = fmt.Errorf("%s %s: %w", verb, w.path(name), err)
		}
	}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		ok, err := w.more()
		if err != nil {
			note("list", "", err)
		}
		if !ok {
			if w.depth() == 0 {
				return first
			}
			if err := w.up(); err != nil {
				return fmt.Errorf("walk %s: %w", w.path(""), err)
			}
			continue
		}
		dir, name := w.top().fd, w.next()
		var st unix.Stat_t
		if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT); err != nil {
			note("stat", name, err)
			continue
		}
		if isDir(&st) {
			if st, err = w.down(name); err != nil {
				note("open", name, err)
				continue
			}
		}
		if err := visit(dir, name, &st); err != nil {
			return err
		}
	}
}

// Usage is what files take.
type Usage struct{ Bytes, Inodes uint64 }

// Count adds up the blocks of dir and of all below it as du does: each hard link once, nothing of other mounts. Files
// may come and go meanwhile. With an error it returns what it could count.
func Count(ctx context.Context, dir string) (Usage, error) {
	var u Usage
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return u, fmt.Errorf("open %s: %w", Shown(dir), err)
	}
	defer unix.Close(fd)
	type file struct{ dev, ino uint64 }
	linked := map[file]struct{}{}
	add := func(_ int, _ string, st *unix.Stat_t) error {
		if st.Nlink > 1 && !isDir(st) {
			if _, ok := linked[file{st.Dev, st.Ino}]; ok {
				return nil
			}
			linked[file{st.Dev, st.Ino}] = struct{}{}
		}
		u.Bytes += uint64(st.Blocks) * 512
		u.Inodes++
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return u, fmt.Errorf("stat %s: %w", Shown(dir), err)
	}
	_ = add(fd, "", &st) // never fails
	return u, Walk(ctx, fd, dir, add)
}
