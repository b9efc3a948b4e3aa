package layer

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Adopt gives directories that a layer implied the owner, mode, times and xattrs they have in the layers below (the
// nearest first). A layer that is filled by itself needs this, because OverlayFS shows a directory with the metadata of the
// highest layer that has it: an archive with just tmp/file would otherwise take the sticky bit from /tmp.
func Adopt(dir string, implied, below []string) error {
	if len(implied) == 0 || len(below) == 0 {
		return nil
	}
	t, err := openTree(dir)
	if err != nil {
		return err
	}
	defer t.close()
	left := implied
	for _, b := range below {
		lower, err := openTree(b)
		if err != nil {
			return err
		}
		var missing []string
		for _, name := range left {
			more, err := adopt(t, lower, name)
			if err != nil {
				lower.close()
				return fmt.Errorf("take over %q of lower layer: %w", name, err)
			}
			if more {
				missing = append(missing, name)
			}
		}
		lower.close()
		if left = missing; len(left) == 0 {
			break
		}
	}
	return nil
}

// adopt copies the metadata of the directory name. more says that a lower layer may have it.
func adopt(t, lower *tree, name string) (more bool, err error) {
	from, err := lower.openat(name, unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) {
		return true, nil
	}
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return false, nil // deleted, or another kind of file: the new one has nothing to do with what is lower still
	}
	if err != nil {
		return false, err
	}
	defer unix.Close(from)
	to, err := t.openat(name, unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return false, nil // a later entry replaced it
	}
	if err != nil {
		return false, err
	}
	defer unix.Close(to)
	var st unix.Stat_t
	if err := unix.Fstat(from, &st); err != nil {
		return false, err
	}
	if err := unix.Fchown(to, int(st.Uid), int(st.Gid)); err != nil {
		return false, err
	}
	if err := unix.Fchmod(to, st.Mode&0o7777); err != nil {
		return false, err
	}
	attrs, err := listXattrs(from)
	if err != nil {
		return false, err
	}
	for k, v := range attrs {
		if err := unix.Fsetxattr(to, k, v, 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
			return false, fmt.Errorf("set attribute %q: %w", k, err)
		}
	}
	return false, unix.UtimesNanoAt(to, ".", []unix.Timespec{st.Atim, st.Mtim}, 0)
}
