package layer

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Adopt gives directories that a layer implied the owner, mode, times and xattrs they have in the layers below (the
// nearest first). A layer that is filled by itself needs this, because OverlayFS shows a directory with the metadata of
// the highest layer that has it: an archive with just tmp/file would otherwise take the sticky bit from /tmp. Where the
// layers below have a symbolic link in its place, it returns [ErrBelow].
//
// It also does what the whiteouts of a layer by itself cannot: make its root opaque, and not show up as names without a
// file in directories that no layer below has, which OverlayFS lists as they are.
func Adopt(dir string, r Result, below []string) error {
	if len(r.Implied) == 0 && len(r.Whiteouts) == 0 && !r.OpaqueRoot {
		return nil
	}
	t, err := openTree(dir)
	if err != nil {
		return err
	}
	defer t.close()
	var lowers []*tree
	defer func() {
		for _, l := range lowers {
			l.close()
		}
	}()
	for _, b := range below {
		l, err := openTree(b)
		if err != nil {
			return err
		}
		lowers = append(lowers, l)
	}
	if r.OpaqueRoot {
		if err := t.hide(below); err != nil {
			return fmt.Errorf("hide lower layers: %w", err)
		}
	}
	for _, name := range r.Whiteouts {
		if err := t.prune(lowers, name); err != nil {
			return fmt.Errorf("drop whiteout %q: %w", name, err)
		}
	}
	for _, name := range r.Implied {
		if through(lowers, name) {
			return fmt.Errorf("write into %q of lower layer: %w", name, ErrBelow)
		}
		if err := t.adopt(lowers, name); err != nil {
			return fmt.Errorf("take over %q of lower layer: %w", name, err)
		}
	}
	return nil
}

// below opens the directory name in the highest of the layers that has it; -1 when what this layer has there stands
// alone.
func below(lowers []*tree, name string) (int, error) {
	for _, l := range lowers {
		fd, err := l.openat(name, unix.O_RDONLY|unix.O_DIRECTORY)
		switch {
		case errors.Is(err, unix.ENOENT):
			continue
		case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
			return -1, nil // deleted, or another kind of file: it hides what is lower still
		}
		return fd, err
	}
	return -1, nil
}

// through says that name is a symbolic link in the layers below. Its parents are known to be none.
func through(lowers []*tree, name string) bool {
	parent, base := split(name)
	for _, l := range lowers {
		dir, err := l.openat(parent, unix.O_PATH|unix.O_DIRECTORY)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return false // deleted, or another kind of file
		}
		st, err := stat(dir, base)
		unix.Close(dir)
		if err == nil {
			return st.Mode&unix.S_IFMT == unix.S_IFLNK
		}
	}
	return false
}

// adopt copies the metadata of the directory name.
func (t *tree) adopt(lowers []*tree, name string) error {
	from, err := below(lowers, name)
	if err != nil || from < 0 {
		return err
	}
	defer unix.Close(from)
	to, err := t.openat(name, unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil // a later entry replaced it
	}
	if err != nil {
		return err
	}
	defer unix.Close(to)
	var st unix.Stat_t
	if err := unix.Fstat(from, &st); err != nil {
		return err
	}
	if err := unix.Fchown(to, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	if err := unix.Fchmod(to, st.Mode&0o7777); err != nil {
		return err
	}
	attrs, err := listXattrs(from)
	if err != nil {
		return err
	}
	for k, v := range attrs {
		if err := unix.Fsetxattr(to, k, v, 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
			return fmt.Errorf("set attribute %q: %w", k, err)
		}
	}
	return unix.UtimesNanoAt(to, ".", []unix.Timespec{st.Atim, st.Mtim}, 0)
}

// prune removes the whiteout name where there is nothing to hide.
func (t *tree) prune(lowers []*tree, name string) error {
	parent, base := split(name)
	dir, err := t.openat(parent, unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil // a later entry replaced it
	}
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	var is [1]byte
	if n, err := unix.Fgetxattr(dir, ovlOpaque, is[:]); err != nil || n != 1 || is[0] != 'y' {
		if lower, err := below(lowers, parent); err != nil || lower >= 0 {
			unix.Close(lower)
			return err
		}
	}
	if st, err := stat(dir, base); err != nil || !isWhiteout(st) {
		return nil // as above
	}
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return err
	}
	if err := unix.Unlinkat(dir, base, 0); err != nil {
		return err
	}
	return unix.UtimesNanoAt(dir, ".", []unix.Timespec{st.Atim, st.Mtim}, 0)
}

// hide puts a whiteout over everything that layers below have in their roots. A directory that this layer has too is
// made opaque.
func (t *tree) hide(below []string) error {
	for _, b := range below {
		fd, err := unix.Open(b, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		names, err := list(fd, b)
		unix.Close(fd)
		if err != nil {
			return err
		}
		for _, n := range names {
			if err := t.cover(t.root, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// cover hides what layers below have as base in dir.
func (t *tree) cover(dir int, base string) error {
	err := unix.Mknodat(dir, base, unix.S_IFCHR, 0)
	if !errors.Is(err, unix.EEXIST) {
		if err == nil {
			t.added(0)
		}
		return err
	}
	st, err := stat(dir, base)
	if err != nil || !isDir(st) {
		return err
	}
	return opaque(openDir(dir, base))
}
