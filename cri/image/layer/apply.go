// Package layer writes the archives of image layers into directories.
//
// The archives are anybody's: names may try to climb out, links may point anywhere, sizes may lie. Everything is
// therefore done relative to open directories, with the kernel resolving paths as if the layer's directory were the
// root of the machine, and everything is paid from a [Budget].
package layer

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/snapshot"
	"github.com/berth-node/berth/internal/filetree"
)

// Options for one layer. Budget is required.
type Options struct {
	Whiteouts snapshot.Whiteouts
	Budget    *Budget
	Log       *slog.Logger
}

// Usage is what was written.
type Usage struct{ Bytes, Inodes uint64 }

// Result of writing a layer, for [Adopt]: Implied are the directories no entry described, which have only default
// metadata; Whiteouts are those made; OpaqueRoot says that nothing of the layers below shall be seen.
type Result struct {
	Usage
	Implied    []string
	Whiteouts  []string
	OpaqueRoot bool
}

// ErrBelow says that an entry goes through a symbolic link of the layers below, or is a hard link to a file of theirs,
// so that the archive can only be written where they are seen. Most image builders never make such a layer.
var ErrBelow = errors.New("it needs the layers below")

// Apply writes the tar archive r into dir, which is as the snapshotter made it. The archive's end is not read: what
// follows is the caller's.
func Apply(ctx context.Context, r io.Reader, dir string, o Options) (Result, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	t, err := openTree(dir)
	if err != nil {
		return Result{}, err
	}
	defer t.close()
	a := &applier{
		tree: t, opt: o, ctx: ctx, umask: umask(), buf: make([]byte, 256<<10),
		implied: map[string]struct{}{"": {}}, later: map[string]*tar.Header{},
	}
	if o.Whiteouts == snapshot.WhiteoutsApply {
		a.made = map[string]struct{}{}
	}
	a.tar = tar.NewReader(r)
	if err := a.entries(); err != nil {
		return Result{}, err
	}
	if err := a.finish(); err != nil {
		return Result{}, err
	}
	return Result{
		Usage: t.usage, Implied: slices.Sorted(maps.Keys(a.implied)), Whiteouts: a.hidden,
		OpaqueRoot: a.opaqueRoot,
	}, nil
}

type applier struct {
	tree  *tree
	opt   Options
	ctx   context.Context
	tar   *tar.Reader
	umask uint32
	buf   []byte

	implied    map[string]struct{}    // directories without an entry so far
	later      map[string]*tar.Header // directories whose times are set last, since every file in them changes those
	made       map[string]struct{}    // names of this archive; only where deletions are done in place
	hidden     []string               // whiteouts
	opaqueRoot bool
	lacking    bool // the filesystem has no xattrs, and it was said
}

// umask of this process: where it does not interfere, a file gets its mode when it is made.
func umask() uint32 {
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "Umask:"); ok {
			if m, err := strconv.ParseUint(strings.TrimSpace(v), 8, 32); err == nil {
				return uint32(m)
			}
		}
	}
	return 0o777
}

func (a *applier) entries() error {
	for {
		if err := a.ctx.Err(); err != nil {
			return context.Cause(a.ctx)
		}
		h, err := a.tar.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) { // of which clean takes care
			return fmt.Errorf("read layer: %w", err)
		}
		if err := a.entry(h); err != nil {
			name := h.Name
			if len(name) > 200 {
				name = name[:200] + "..."
			}
			return fmt.Errorf("write entry %q of layer: %w", name, err)
		}
	}
}

func (a *applier) entry(h *tar.Header) error {
	a.tree.reap()
	if err := a.opt.Budget.take(0, 1); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name, err := clean(h.Name)
	if err != nil {
		return err
	}
	if name == "" {
		if h.Typeflag != tar.TypeDir {
			return errors.New("the root is not a directory")
		}
		return a.described("", ".", handle{fd: a.tree.root}, h)
	}
	if !validID(h.Uid) || !validID(h.Gid) {
		return fmt.Errorf("owner %d:%d: %w", h.Uid, h.Gid, unix.EINVAL)
	}
	parent, base := split(name)
	if len(base) > unix.NAME_MAX+len(whPrefix) || !strings.HasPrefix(base, whPrefix) && len(base) > unix.NAME_MAX {
		return unix.ENAMETOOLONG
	}
	dir, err := a.mkdirAll(parent)
	if err != nil {
		return err
	}
	if strings.HasPrefix(base, whPrefix) {
		return a.whiteout(dir, parent, base)
	}
	a.remember(name)
	switch h.Typeflag {
	case tar.TypeDir:
		return a.directory(name, base, dir, h)
	case tar.TypeReg, tar.TypeRegA, tar.TypeCont, tar.TypeGNUSparse: //nolint:staticcheck // old archives have TypeRegA
		return a.file(base, dir, h)
	case tar.TypeLink:
		return a.hardlink(name, base, dir, h)
	case tar.TypeSymlink, tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		return a.special(base, dir, h)
	}
	return fmt.Errorf("type %q: %w", h.Typeflag, errors.ErrUnsupported)
}

// validID says that an owner fits the 32 bits the kernel takes; -1 would mean "leave as it is".
func validID(id int) bool { return id >= 0 && id < math.MaxUint32 }

// mkdirAll opens the directory name and makes what is missing of it, one after the other, so that few are open at a
// time. Whoever calls it has no handle.
func (a *applier) mkdirAll(name string) (handle, error) {
	var missing []string
	h, err := a.tree.find(name)
	for at := name; at != "" && (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR)); {
		missing = append(missing, at)
		at, _ = split(at)
		h, err = a.tree.find(at)
	}
	if err != nil {
		return h, err
	}
	for _, at := range slices.Backward(missing) {
		a.tree.reap()
		if h, err = a.mkdirIn(at); err != nil {
			return h, err
		}
	}
	return h, nil
}

// mkdirIn makes the directory name, which the archive only implies, in one that is there.
func (a *applier) mkdirIn(name string) (h handle, err error) {
	parent, base := split(name)
	up, err := a.tree.find(parent)
	if err != nil {
		return h, err
	}
	if err := a.opt.Budget.take(0, 1); err != nil {
		return h, err
	}
	fresh, err := a.mkdir(up, base, 0o755)
	if _, ours := a.made[name]; errors.Is(err, unix.ENOTDIR) && a.made != nil && !ours {
		// A file of the layers below, which an overlay would hide.
		if err := a.tree.remove(up.fd, base); err != nil {
			return h, err
		}
		fresh, err = a.mkdir(up, base, 0o755)
	}
	if err != nil {
		return h, fmt.Errorf("make directory %s: %w", filetree.Shown(name), err)
	}
	if !fresh {
		return h, fmt.Errorf("make directory %s: %w", filetree.Shown(name), unix.ENOTDIR) // a link to nowhere
	}
	a.implied[name] = struct{}{}
	return a.tree.find(name)
}

// mkdir makes base in dir; not fresh when it is there. A whiteout there means that the lower layers' directory of that
// name shall not show through the new one.
func (a *applier) mkdir(dir handle, base string, mode uint32) (fresh bool, err error) {
	err = unix.Mkdirat(dir.fd, base, mode)
	hides := false
	if errors.Is(err, unix.EEXIST) {
		st, err := stat(dir.fd, base)
		if err != nil {
			return false, err
		}
		switch {
		case isDir(st), st.Mode&unix.S_IFMT == unix.S_IFLNK:
			return false, nil
		case !isWhiteout(st):
			return false, unix.ENOTDIR
		}
		hides = true
		if err := a.tree.remove(dir.fd, base); err != nil {
			return false, err
		}
		if err := unix.Mkdirat(dir.fd, base, mode); err != nil {
			return false, err
		}
	} else if err != nil {
		return false, err
	}
	a.tree.added(1)
	if dir.setgid || mode&a.umask != 0 {
		if err := unix.Fchmodat(dir.fd, base, mode, 0); err != nil {
			return true, err
		}
	}
	if hides {
		return true, opaque(openDir(dir.fd, base))
	}
	return true, nil
}

func (a *applier) directory(name, base string, dir handle, h *tar.Header) error {
	mode := uint32(h.Mode) & 0o777
	fresh, err := a.mkdir(dir, base, mode)
	if errors.Is(err, unix.ENOTDIR) || err == nil && !fresh {
		st, err := stat(dir.fd, base)
		if err != nil {
			return err
		}
		if !isDir(st) {
			if err := a.tree.remove(dir.fd, base); err != nil {
				return err
			}
			if fresh, err = a.mkdir(dir, base, mode); err != nil {
				return err
			}
		}
	} else if err != nil {
		return err
	}
	if fresh && h.Uid == 0 && h.Gid == 0 && !dir.setgid && h.Mode&0o7000 == 0 {
		delete(a.implied, name)
		a.later[name] = h
		return nil
	}
	return a.described(name, base, dir, h)
}

// described gives a directory that may have been there before the owner and mode of its entry.
func (a *applier) described(name, base string, dir handle, h *tar.Header) error {
	if err := unix.Fchownat(dir.fd, base, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if err := unix.Fchmodat(dir.fd, base, uint32(h.Mode)&0o7777, 0); err != nil {
		return err
	}
	if open, ok := a.tree.open[name]; ok { // it was kept with the setgid bit of before
		a.tree.stale = append(a.tree.stale, open)
		delete(a.tree.open, name)
	}
	delete(a.implied, name)
	a.later[name] = h
	return nil
}

// finish sets the times and xattrs of directories. The xattrs come so late because a default ACL among them would be
// inherited by the files.
func (a *applier) finish() error {
	for name, h := range a.later {
		a.tree.reap()
		if err := a.settle(name, h); err != nil {
			return fmt.Errorf("write entry %q of layer: %w", h.Name, err)
		}
	}
	return nil
}

func (a *applier) settle(name string, h *tar.Header) error {
	base := "."
	parent := ""
	if name != "" {
		parent, base = split(name)
	}
	dir, err := a.tree.find(parent)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil // a later entry replaced it
	}
	if err != nil {
		return err
	}
	if st, err := stat(dir.fd, base); err != nil || !isDir(st) {
		return nil // as above
	}
	if len(xattrs(h)) > 0 {
		fd, err := openDir(dir.fd, base)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := a.setXattrs(fd, h); err != nil {
			return err
		}
	}
	return setTimes(dir.fd, base, h)
}

func setTimes(dir int, base string, h *tar.Header) error {
	atime := h.AccessTime
	if atime.IsZero() {
		atime = h.ModTime
	}
	ts := []unix.Timespec{timespec(atime), timespec(h.ModTime)}
	return unix.UtimesNanoAt(dir, base, ts, unix.AT_SYMLINK_NOFOLLOW)
}

func timespec(t time.Time) unix.Timespec {
	return unix.Timespec{Sec: t.Unix(), Nsec: int64(t.Nanosecond())}
}
