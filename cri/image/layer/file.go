package layer

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/snapshot"
)

// file writes a regular file.
func (a *applier) file(base string, dir handle, h *tar.Header) error {
	if err := a.opt.Budget.take(int64(a.tree.blocks(h.Size)), 0); err != nil {
		return err
	}
	mode := uint32(h.Mode) & 0o7777
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(dir.fd, base, flags, mode&0o777)
	if errors.Is(err, unix.EEXIST) {
		if err := a.tree.remove(dir.fd, base); err != nil {
			return err
		}
		fd, err = unix.Openat(dir.fd, base, flags, mode&0o777)
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	size, err := a.content(fd, h)
	if err != nil {
		return err
	}
	a.tree.added(size)
	owned := h.Uid != 0 || h.Gid != 0 || dir.setgid
	if owned {
		if err := unix.Fchown(fd, h.Uid, h.Gid); err != nil {
			return err
		}
	}
	// After the owner, whose change drops setuid and setgid; as the xattrs, because of security.capability.
	if owned || mode&(a.umask|0o7000) != 0 {
		if err := unix.Fchmod(fd, mode); err != nil {
			return err
		}
	}
	if err := a.setXattrs(fd, h); err != nil {
		return err
	}
	return setTimes(dir.fd, base, h)
}

// content copies the data of the current entry and returns how much of it takes space.
func (a *applier) content(fd int, h *tar.Header) (int64, error) {
	sparse := isSparse(h)
	var offset, written int64
	for offset < h.Size {
		if err := a.ctx.Err(); err != nil {
			return 0, context.Cause(a.ctx)
		}
		buf := a.buf[:min(int64(len(a.buf)), h.Size-offset)]
		if _, err := io.ReadFull(a.tar, buf); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return 0, err
		}
		n, err := write(fd, buf, offset, sparse)
		if err != nil {
			return 0, err
		}
		written += n
		offset += int64(len(buf))
	}
	if sparse {
		return written, unix.Ftruncate(fd, h.Size)
	}
	return written, nil
}

func isSparse(h *tar.Header) bool {
	if h.Typeflag == tar.TypeGNUSparse {
		return true
	}
	for k := range h.PAXRecords {
		if strings.HasPrefix(k, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// write puts buf at offset, leaving out the blocks of zeros of a sparse file, which read as zeros anyway.
func write(fd int, buf []byte, offset int64, sparse bool) (written int64, err error) {
	for len(buf) > 0 {
		n := len(buf)
		if sparse {
			n = min(n, len(zeros))
			if bytes.Equal(buf[:n], zeros[:n]) {
				buf, offset = buf[n:], offset+int64(n)
				continue
			}
		}
		n, err := unix.Pwrite(fd, buf[:n], offset)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return written, err
		}
		buf, offset, written = buf[n:], offset+int64(n), written+int64(n)
	}
	return written, nil
}

var zeros [4096]byte

// hardlink makes base a second name of a file that is in this layer already.
func (a *applier) hardlink(name, base string, dir handle, h *tar.Header) error {
	target, err := clean(h.Linkname)
	if err != nil {
		return fmt.Errorf("link to %q: %w", h.Linkname, err)
	}
	if target == name {
		return nil
	}
	parent, file := split(target)
	if strings.HasPrefix(file, whPrefix) || file == "" {
		return fmt.Errorf("link to %q: %w", h.Linkname, unix.EPERM)
	}
	// Only the file itself is linked, also when it is a symbolic link; those on the way are followed inside the layer.
	from, err := a.tree.find(parent)
	if err != nil {
		return a.wrapMissing(h.Linkname, err)
	}
	err = unix.Linkat(from.fd, file, dir.fd, base, 0)
	if errors.Is(err, unix.ENOENT) {
		return a.wrapMissing(h.Linkname, err)
	}
	if !errors.Is(err, unix.EEXIST) {
		return wrapLink(h.Linkname, err)
	}
	old, err := stat(dir.fd, base)
	if err != nil {
		return err
	}
	st, err := stat(from.fd, file)
	if err != nil || st.Dev == old.Dev && st.Ino == old.Ino {
		return wrapLink(h.Linkname, err)
	}
	if err := a.tree.remove(dir.fd, base); err != nil {
		return err
	}
	return wrapLink(h.Linkname, unix.Linkat(from.fd, file, dir.fd, base, 0))
}

// wrapMissing is the error of a link to something that this layer does not have.
func (a *applier) wrapMissing(target string, err error) error {
	if errors.Is(err, unix.ENOENT) && a.opt.Whiteouts == snapshot.WhiteoutsOverlay {
		err = fmt.Errorf("%w: %w", ErrBelow, err)
	}
	return wrapLink(target, err)
}

func wrapLink(target string, err error) error {
	if err != nil {
		return fmt.Errorf("link to %q: %w", target, err)
	}
	return nil
}

// special makes what has no content: symbolic links, devices, pipes.
func (a *applier) special(base string, dir handle, h *tar.Header) error {
	mode := uint32(h.Mode) & 0o7777
	var create func() error
	switch h.Typeflag {
	case tar.TypeSymlink:
		create = func() error { return unix.Symlinkat(h.Linkname, dir.fd, base) }
	case tar.TypeFifo:
		create = func() error { return unix.Mknodat(dir.fd, base, unix.S_IFIFO|mode, 0) }
	default:
		kind := uint32(unix.S_IFCHR)
		if h.Typeflag == tar.TypeBlock {
			kind = unix.S_IFBLK
		}
		if h.Devmajor != int64(uint32(h.Devmajor)) || h.Devminor != int64(uint32(h.Devminor)) {
			return fmt.Errorf("device %d:%d: %w", h.Devmajor, h.Devminor, unix.EINVAL)
		}
		dev := unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor))
		create = func() error { return unix.Mknodat(dir.fd, base, kind|mode, int(dev)) }
	}
	err := create()
	if errors.Is(err, unix.EEXIST) {
		if err := a.tree.remove(dir.fd, base); err != nil {
			return err
		}
		err = create()
	}
	if err != nil {
		return err
	}
	a.tree.added(0)
	if h.Uid != 0 || h.Gid != 0 || dir.setgid {
		if err := unix.Fchownat(dir.fd, base, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	// Not a link, so there is nothing that chmod could follow.
	if h.Typeflag != tar.TypeSymlink {
		if err := unix.Fchmodat(dir.fd, base, mode, 0); err != nil {
			return err
		}
	}
	return setTimes(dir.fd, base, h)
}
