package filetree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Room is how much a copy may take. What it has more of it does not copy: the error is of the kind ENOSPC.
type Room struct {
	Bytes, Inodes uint64
}

// RoomOf is a share of what is free on the file system of dir.
func RoomOf(dir string, share float64) (Room, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return Room{}, fmt.Errorf("look for free space of %s: %w", Shown(dir), err)
	}
	r := Room{Bytes: uint64(share * float64(st.Bavail) * float64(st.Bsize)), Inodes: uint64(share * float64(st.Ffree))}
	if st.Files == 0 { // btrfs and others make inodes as they need them
		r.Inodes = 1 << 40
	}
	return r, nil
}

// copyChunk is what is copied of a file between two looks whether somebody still wants it.
const copyChunk = 32 << 20

// copyEntries is how many entries of a directory are read at once.
const copyEntries = 512

// Copy copies what is in the directory src into the directory dst, which is made unless it is there, with owners,
// modes, times, extended attributes, links among the files, and holes in them. It ends with ctx, between two parts of a
// file too, and leaves what it has copied. Nobody else may change either tree meanwhile.
func Copy(ctx context.Context, dst, src string, room Room) error {
	st, err := os.Stat(src)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	if !st.IsDir() {
		return fmt.Errorf("copy %s: %w", Shown(src), unix.ENOTDIR)
	}
	if err := os.Mkdir(dst, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("copy: %w", err)
	}
	c := &copier{room: room, linked: map[inode]string{}}
	if err := c.dir(ctx, dst, src); err != nil {
		return fmt.Errorf("copy %s: %w", Shown(src), err)
	}
	return nil
}

type inode struct{ dev, ino uint64 }

type copier struct {
	room   Room
	linked map[inode]string // where files are by now that have several names
}

// take counts what an entry takes.
func (c *copier) take(st *unix.Stat_t) error {
	bytes := uint64(0)
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		bytes = uint64(st.Blocks) * 512
	}
	if c.room.Inodes == 0 || bytes > c.room.Bytes {
		return fmt.Errorf("more than may be copied: %w", unix.ENOSPC)
	}
	c.room.Inodes--
	c.room.Bytes -= bytes
	return nil
}

// dir copies what is in a directory, and then what it is itself: its times are those of its last entry until then.
func (c *copier) dir(ctx context.Context, dst, src string) error {
	f, err := os.Open(src)
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		names, err := f.Readdirnames(copyEntries)
		for _, name := range names {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := c.entry(ctx, filepath.Join(dst, name), filepath.Join(src, name)); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return &os.PathError{Op: "stat", Path: Shown(src), Err: err}
	}
	return imitate(dst, src, &st)
}

func (c *copier) entry(ctx context.Context, dst, src string) error {
	var st unix.Stat_t
	if err := unix.Lstat(src, &st); err != nil {
		return &os.PathError{Op: "stat", Path: Shown(src), Err: err}
	}
	if st.Nlink > 1 && !isDir(&st) {
		id := inode{st.Dev, st.Ino}
		if first, ok := c.linked[id]; ok {
			return os.Link(first, dst)
		}
		c.linked[id] = dst
	}
	if err := c.take(&st); err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		if err := os.Mkdir(dst, 0o700); err != nil {
			return err
		}
		return c.dir(ctx, dst, src)
	case unix.S_IFREG:
		if err := copyFile(ctx, dst, src); err != nil {
			return err
		}
	case unix.S_IFLNK:
		to, err := os.Readlink(src)
		if err == nil {
			err = os.Symlink(to, dst)
		}
		if err != nil {
			return err
		}
	default:
		if err := unix.Mknod(dst, st.Mode, int(st.Rdev)); err != nil {
			return &os.PathError{Op: "mknod", Path: Shown(dst), Err: err}
		}
	}
	return imitate(dst, src, &st)
}

// CopyFile copies a file to dst, which must not be there: what it has, and no holes. It ends with ctx, and leaves what
// it has copied.
func CopyFile(ctx context.Context, dst, src string) error { return copyFile(ctx, dst, src) }

// copyFile copies what a file has, and no holes: an image may have a file of terabytes that takes nothing.
func copyFile(ctx context.Context, dst, src string) (err error) {
	from, err := os.Open(src)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	st, err := from.Stat()
	if err != nil {
		return err
	}
	if err := to.Truncate(st.Size()); err != nil {
		return err
	}
	for at := int64(0); at < st.Size(); {
		begin, err := unix.Seek(int(from.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) { // there is a hole up to the end
			return nil
		}
		end := st.Size()
		if err != nil { // a file system that does not know holes
			begin = at
		} else if hole, err := unix.Seek(int(from.Fd()), begin, unix.SEEK_HOLE); err == nil {
			end = hole
		}
		if err := copyRange(ctx, to, from, begin, end); err != nil {
			return &os.PathError{Op: "copy", Path: Shown(src), Err: err}
		}
		at = end
	}
	return nil
}

// copyRange copies in the kernel where it can, which shares the blocks where the file system can.
func copyRange(ctx context.Context, to, from *os.File, begin, end int64) error {
	for begin < end {
		if err := ctx.Err(); err != nil {
			return err
		}
		part := min(end-begin, copyChunk)
		r, w := begin, begin
		n, err := unix.CopyFileRange(int(from.Fd()), &r, int(to.Fd()), &w, int(part), 0)
		if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
			var by int64
			by, err = io.Copy(io.NewOffsetWriter(to, begin), io.NewSectionReader(from, begin, part))
			n = int(by)
		}
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return io.ErrUnexpectedEOF
		}
		begin += int64(n)
	}
	return nil
}

// imitate gives dst what src is beside its content. The owner comes before the mode and the attributes, which a change
// of it takes away.
func imitate(dst, src string, st *unix.Stat_t) error {
	if err := os.Lchown(dst, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Chmod(dst, st.Mode&0o7777); err != nil {
			return &os.PathError{Op: "chmod", Path: Shown(dst), Err: err}
		}
	}
	if err := copyXattrs(dst, src); err != nil {
		return &os.PathError{Op: "copy attributes of", Path: Shown(src), Err: err}
	}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, dst, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "set times of", Path: Shown(dst), Err: err}
	}
	return nil
}

// maxXattr is the kernel's bound of the names of a file's attributes, and of the value of one.
const maxXattr = 64 << 10

func copyXattrs(dst, src string) error {
	n, err := unix.Llistxattr(src, nil)
	if n == 0 || errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	if err != nil {
		return err
	}
	names := make([]byte, maxXattr)
	if n, err = unix.Llistxattr(src, names); err != nil {
		return err
	}
	value := make([]byte, maxXattr)
	for begin, i := 0, 0; i < n; i++ {
		if names[i] != 0 {
			continue
		}
		name := string(names[begin:i])
		begin = i + 1
		size, err := unix.Lgetxattr(src, name, value)
		if err == nil {
			err = unix.Lsetxattr(dst, name, value[:size], 0)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}
