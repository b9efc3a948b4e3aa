package snapshot

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/filetree"
)

// diff walks a writable snapshot beside what it stands on. Whoever runs in the container may change both names and
// files meanwhile, so that all is opened below roots, which no symbolic link leads out of.
type diff struct {
	own, base *os.Root // base is nil when the snapshot stands on nothing
	copied    bool     // own has the files of base, too
	out       *tar.Writer
	links     map[[2]uint64]string // device and inode of written files with more than one name
	deleted   []string
}

// writeDiff writes what the directory own has other than base, "" for nothing, as an archive. copied says that own has
// the files of base, too.
func writeDiff(ctx context.Context, own, base string, copied bool, w io.Writer) (deleted []string, err error) {
	d := &diff{copied: copied, out: tar.NewWriter(w), links: map[[2]uint64]string{}}
	if d.own, err = os.OpenRoot(own); err != nil {
		return nil, err
	}
	defer d.own.Close()
	if base != "" {
		if d.base, err = os.OpenRoot(base); err != nil {
			return nil, err
		}
		defer d.base.Close()
	}
	if err := d.walk(ctx, ".", copied); err != nil {
		return nil, err
	}
	return d.deleted, d.out.Close()
}

// walk compares one directory. beside says that the base's has names of its own to look for: not so below an upper
// directory of an overlay, where what was deleted is a whiteout, unless the directory covers the other.
func (d *diff) walk(ctx context.Context, dir string, beside bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(dir) >= unix.PathMax {
		return fmt.Errorf("%s: %w", filetree.Shown(dir), unix.ENAMETOOLONG) // nobody could unpack it
	}
	entries, err := iofs.ReadDir(d.own.FS(), dir)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	have := map[string]bool{}
	for _, e := range entries {
		have[e.Name()] = true
	}
	if beside && d.base != nil {
		below, err := iofs.ReadDir(d.base.FS(), dir)
		if err != nil && !gone(err) {
			return err
		}
		for _, e := range below {
			if !have[e.Name()] {
				d.deleted = append(d.deleted, "/"+path.Join(dir, e.Name()))
			}
		}
	}
	for _, e := range entries {
		if err := d.entry(ctx, path.Join(dir, e.Name()), beside); err != nil {
			return err
		}
	}
	return nil
}

func (d *diff) entry(ctx context.Context, name string, beside bool) error {
	info, err := d.own.Lstat(name)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if !d.copied && isWhiteout(info) {
		d.deleted = append(d.deleted, "/"+name)
		return nil
	}
	if !d.copied || !d.same(name, info) {
		if err := d.write(name, info); err != nil {
			return fmt.Errorf("%s: %w", filetree.Shown(name), err)
		}
	}
	if !info.IsDir() {
		return nil
	}
	return d.walk(ctx, name, beside || d.opaque(name))
}

func isWhiteout(info iofs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && info.Mode()&os.ModeCharDevice != 0 && st.Rdev == 0
}

// opaque says that an upper directory covers the one below, instead of being merged with it.
func (d *diff) opaque(dir string) bool {
	f, err := d.own.Open(dir)
	if err != nil {
		return false
	}
	defer f.Close()
	b := make([]byte, 1)
	n, err := unix.Fgetxattr(int(f.Fd()), "trusted.overlay.opaque", b)
	return err == nil && n == 1 && b[0] == 'y'
}

// same says that a file is still the copy of the one below. Contents are not compared: who writes changes the time,
// too.
func (d *diff) same(name string, info iofs.FileInfo) bool {
	if d.base == nil {
		return false
	}
	was, err := d.base.Lstat(name)
	if err != nil || was.Mode() != info.Mode() {
		return false
	}
	a, b := was.Sys().(*syscall.Stat_t), info.Sys().(*syscall.Stat_t)
	if a.Uid != b.Uid || a.Gid != b.Gid || a.Rdev != b.Rdev {
		return false
	}
	return info.IsDir() || was.Size() == info.Size() && was.ModTime().Equal(info.ModTime())
}

func (d *diff) write(name string, info iofs.FileInfo) (err error) {
	if info.Mode()&os.ModeSocket != 0 {
		return nil // archives have none
	}
	target := ""
	if info.Mode()&os.ModeSymlink != 0 {
		if target, err = d.own.Readlink(name); err != nil {
			return unlessGone(err)
		}
	}
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	// Names of users are those of the machine, which are nobody's in the container.
	h.Name, h.Uname, h.Gname, h.Format = name, "", "", tar.FormatPAX
	if info.IsDir() {
		h.Name += "/"
	}
	st := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() && st.Nlink > 1 {
		id := [2]uint64{uint64(st.Dev), st.Ino}
		if first, ok := d.links[id]; ok {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
			return d.out.WriteHeader(h)
		}
		defer func() {
			if err == nil {
				d.links[id] = name
			}
		}()
	}
	if !info.Mode().IsRegular() && !info.IsDir() {
		return d.out.WriteHeader(h)
	}
	// Should it be a pipe by now, nobody waits for its other end.
	f, err := d.own.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return unlessGone(err)
	}
	defer f.Close()
	addXattrs(h, int(f.Fd()))
	if err := d.out.WriteHeader(h); err != nil || info.IsDir() {
		return err
	}
	return copyExactly(d.out, f, h.Size)
}

// copyExactly copies as much as the header has announced, of a file that may become longer or shorter meanwhile.
func copyExactly(w io.Writer, f *os.File, size int64) error {
	n, err := io.Copy(w, io.LimitReader(f, size))
	if err != nil || n == size {
		return err
	}
	_, err = io.CopyN(w, zeros{}, size-n)
	return err
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// addXattrs adds the attributes that belong to a file wherever it is: its capabilities, and those of its owner's
// making.
func addXattrs(h *tar.Header, fd int) {
	names := make([]byte, 64<<10) // the most the kernel gives
	n, err := unix.Flistxattr(fd, names)
	if err != nil {
		return
	}
	value := make([]byte, 64<<10)
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names[:n]), "\x00"), "\x00") {
		if name != "security.capability" && !strings.HasPrefix(name, "user.") {
			continue
		}
		if n, err := unix.Fgetxattr(fd, name, value); err == nil {
			if h.PAXRecords == nil {
				h.PAXRecords = map[string]string{}
			}
			h.PAXRecords["SCHILY.xattr."+name] = string(value[:n])
		}
	}
}

func gone(err error) bool {
	return errors.Is(err, iofs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
}

func unlessGone(err error) error {
	if gone(err) {
		return nil
	}
	return err
}
