package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/store"
	"github.com/berth-node/berth/internal/disk"
	"github.com/berth-node/berth/internal/spread"
)

// overlayOptions of every mount.
//
// index=off: with an index the upper directory is bound to one set of layers by file handles, and could not be copied.
// redirect_dir=nofollow, metacopy=off: nothing in a layer, which is foreign input, may point to another place of the
// stack. xino and userxattr stay at their defaults: all layers are on one filesystem, so inode numbers are unique
// already, and we mount with the right to use trusted xattrs, which a container cannot forge.
func overlayOptions() []string {
	return []string{"index=off", "redirect_dir=nofollow", "metacopy=off"}
}

// volatileOption, of writable mounts, makes fsync inside the container's root filesystem return at once and unmounting
// not sync the filesystem below: 0.05 ms instead of 0.3, or of 100 where the machine has much dirty data of anybody.
// What is risked is what a container wrote to its root since a power cut or a kernel crash, and nobody can read that: a
// container of an earlier boot is never started again, its successor begins with the image. Volumes are not part of
// this mount; what is written there is as durable as ever. So data that has to survive has its place, and the rest
// costs no disk writes at all when it is deleted soon.
const volatileOption = "volatile"

// overlay is the driver whose snapshots are stacked with OverlayFS.
type overlay struct{ dirs directories }

// NewOverlay opens the snapshots below root that are stacked with OverlayFS. It fails with [ErrUnsupported] when a
// trial shows that this cannot be done on the filesystem of root.
func NewOverlay(root string, db *store.DB, log *slog.Logger) (Snapshotter, error) {
	s, err := open(root, db, log, func(d directories) driver { return &overlay{d} })
	if err != nil {
		return nil, err
	}
	if err := tryOverlay(s.dirs.root); OfTheMoment(err) {
		// What is stacked already was so by a start that could try it, and copies would not be found again by the next.
		s.log.Error("whether overlay mounts work here cannot be tried, and is assumed", "root", root, "error", err)
	} else if err != nil {
		return nil, fmt.Errorf("try overlay in %s: %w: %w", s.dirs.root, ErrUnsupported, err)
	}
	spread.Apart(s.dirs.root)
	return s, nil
}

// tryOverlay mounts, deletes and makes again: filesystems without whiteouts, xattrs or types in directory entries (and
// overlay itself) take the mount, or not even that, and fail later.
func tryOverlay(root string) (err error) {
	if strings.ContainsAny(root, `:,\`) {
		return fmt.Errorf("path %q has a character that overlay options cannot", root)
	}
	dir := filepath.Join(root, "probe")
	path := func(s string) string { return filepath.Join(dir, s) }
	end := func() error { return os.RemoveAll(dir) }
	if err := end(); err != nil { // of a trial that was cut off
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	for _, d := range []string{"fs/gone", "u", "w", "m"} {
		if err := os.MkdirAll(path(d), 0o700); err != nil {
			return err
		}
	}
	for _, f := range []string{"fs/file", "fs/gone/file"} {
		if err := os.WriteFile(path(f), nil, 0o600); err != nil {
			return err
		}
	}
	m := Mount{Type: "overlay", Source: "overlay", Options: append([]string{
		"lowerdir=" + path("fs"), "upperdir=" + path("u"), "workdir=" + path("w"), volatileOption,
	}, overlayOptions()...)}
	mnt, err := m.detached(path("m")) // so that a crash leaves no mount
	if err != nil {
		return err
	}
	defer mnt.Close()
	inside := func(name string) string { return fmt.Sprintf("/proc/self/fd/%d/%s", mnt.Fd(), name) }
	if err := errors.Join(os.Remove(inside("file")), os.RemoveAll(inside("gone")), os.Mkdir(inside("gone"), 0o700)); err != nil {
		return err
	}
	for _, f := range []string{"file", "gone/file"} {
		if _, err := os.Lstat(inside(f)); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("deleted file came back (%w)", err)
		}
	}
	return nil
}

// OfTheMoment says that an error is of the state the machine is in, and not of what its kernel or the filesystem can
// do.
func OfTheMoment(err error) bool {
	return disk.Unwritable(err) || disk.Scarce(err)
}

func (o *overlay) name() string         { return "overlay" }
func (o *overlay) independent() bool    { return true }
func (o *overlay) whiteouts() Whiteouts { return WhiteoutsOverlay }

// fill leaves the directory empty: OverlayFS shows the rest.
func (o *overlay) fill(context.Context, string, []uint64) error { return nil }

func (o *overlay) writable(_ context.Context, id uint64, layers []uint64) ([]Mount, error) {
	if err := o.makeWritable(id, layers); err != nil {
		return nil, err
	}
	if len(layers) == 0 {
		return []Mount{{Type: "bind", Source: o.dirs.files(id)}}, nil
	}
	return []Mount{o.mount(layers, "upperdir="+o.dirs.files(id), "workdir="+o.dirs.work(id), volatileOption)}, nil
}

// makeWritable makes the directories of a writable snapshot. The root directory that a container sees is the upper one,
// so it gets mode and owner of the one it covers; its other directories, OverlayFS copies up itself.
func (o *overlay) makeWritable(id uint64, layers []uint64) error {
	if _, err := os.Lstat(o.dirs.work(id)); err == nil {
		// Made before, and mounted perhaps. OverlayFS marks a volatile mount in its work directory and refuses a second
		// one, since after a power cut it would be of torn files; this is still the same boot.
		return os.RemoveAll(filepath.Join(o.dirs.work(id), "work", "incompat"))
	}
	if err := os.MkdirAll(o.dirs.files(id), 0o755); err != nil {
		return err
	}
	if len(layers) > 0 {
		info, err := os.Lstat(o.dirs.files(layers[0]))
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		if err := os.Lchown(o.dirs.files(id), int(st.Uid), int(st.Gid)); err != nil {
			return err
		}
		if err := unix.Chmod(o.dirs.files(id), st.Mode&0o7777); err != nil {
			return err
		}
	}
	return os.Mkdir(o.dirs.work(id), 0o700) // last: says that the rest is there
}

func (o *overlay) view(id uint64, layers []uint64) ([]Mount, error) {
	if len(layers) >= 2 {
		return []Mount{o.mount(layers, "ro")}, nil
	}
	return o.dirs.bindView(id, layers) // OverlayFS wants two layers at least
}

// base mounts what is below, until it is done or this process ends.
func (o *overlay) base(id uint64, layers []uint64) (string, func() error, error) {
	if len(layers) == 1 { // OverlayFS wants two
		return o.dirs.files(layers[0]), func() error { return nil }, nil
	}
	at, err := os.MkdirTemp(o.dirs.dir(id), "look")
	if err != nil {
		return "", nil, err
	}
	f, err := o.mount(layers, "ro").detached(at)
	if err != nil {
		return "", nil, errors.Join(err, os.Remove(at))
	}
	return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())), func() error { return errors.Join(f.Close(), os.Remove(at)) }, nil
}

func (o *overlay) mount(layers []uint64, options ...string) Mount {
	dirs := make([]string, len(layers))
	for i, id := range layers {
		dirs[i] = o.dirs.files(id)
	}
	options = append(options, "lowerdir="+strings.Join(dirs, ":"))
	return Mount{Type: "overlay", Source: "overlay", Options: append(options, overlayOptions()...)}
}
