package backend

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/atomicfile"
	"github.com/berth-node/berth/internal/filetree"
	"github.com/berth-node/berth/internal/loop"
)

// Images are sparse files, each of which becomes a loop device.
type Images struct{ Dir string }

// Path is where an image is.
func (b Images) Path(id string) string { return filepath.Join(b.Dir, id) }

// Make makes an image of a size in bytes that takes nothing yet.
func (b Images) Make(_ context.Context, id string, size int64) error {
	if err := b.remove(id); err != nil {
		return err
	}
	f, err := os.OpenFile(b.Path(id), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("make image: %w", err)
	}
	err = f.Truncate(size)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("make image: %w", err)
	}
	return atomicfile.SyncDir(b.Dir)
}

// Copy makes an image that has what another one has now. shared says that both take the same blocks until one of them
// changes.
func (b Images) Copy(ctx context.Context, id, from string) (shared bool, err error) {
	if err := b.remove(id); err != nil {
		return false, err
	}
	if shared, err = clone(b.Path(id), b.Path(from)); err != nil {
		return false, fmt.Errorf("clone image: %w", err)
	}
	if !shared {
		if err := filetree.CopyFile(ctx, b.Path(id), b.Path(from)); err != nil {
			return false, fmt.Errorf("copy image: %w", err)
		}
	}
	f, err := os.OpenFile(b.Path(id), os.O_RDWR, 0)
	if err != nil {
		return false, fmt.Errorf("copy image: %w", err)
	}
	if err := errors.Join(f.Sync(), f.Close(), atomicfile.SyncDir(b.Dir)); err != nil {
		return false, fmt.Errorf("sync image: %w", err)
	}
	return shared, nil
}

// clone makes a file that shares the blocks of another; false, and no file, where the file system does not do that.
func clone(to, from string) (bool, error) {
	src, err := os.Open(from)
	if err != nil {
		return false, err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return false, err
	}
	err = unix.IoctlFileClone(int(dst.Fd()), int(src.Fd()))
	if err = errors.Join(err, dst.Close()); err == nil {
		return true, nil
	}
	removed := os.Remove(to)
	for _, no := range []error{unix.EOPNOTSUPP, unix.ENOTTY, unix.EINVAL, unix.EXDEV, unix.ENOSYS} {
		if errors.Is(err, no) {
			return false, removed
		}
	}
	return false, errors.Join(err, removed)
}

// Remove removes an image and its device.
func (b Images) Remove(_ context.Context, id string) error { return b.remove(id) }

func (b Images) remove(id string) error {
	if err := loop.Detach(b.Path(id)); err != nil {
		return err
	}
	err := os.Remove(b.Path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = atomicfile.SyncDir(b.Dir) // its record goes next, and must not be gone before it
	}
	if err != nil {
		return fmt.Errorf("remove image: %w", err)
	}
	return nil
}

// Grow has an image be at least of a size in bytes, and its device, when it has one, as large as it is.
func (b Images) Grow(_ context.Context, id string, size int64) error {
	st, err := os.Stat(b.Path(id))
	if err != nil {
		return fmt.Errorf("grow image: %w", err)
	}
	if st.Size() < size {
		f, err := os.OpenFile(b.Path(id), os.O_RDWR, 0)
		if err != nil {
			return fmt.Errorf("grow image: %w", err)
		}
		err = f.Truncate(size)
		if err == nil {
			err = f.Sync()
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("grow image: %w", err)
		}
	}
	return loop.Resize(b.Path(id))
}

// Attach makes the device of an image. release lets go of it: by then it is mounted, or, with keep, stays until
// [Images.Detach].
func (b Images) Attach(ctx context.Context, id string, keep bool) (device string, release func(), err error) {
	d, err := loop.Attach(ctx, b.Path(id), !keep)
	if err != nil {
		return "", nil, err
	}
	return d.Path, func() { d.Close() }, nil
}

// Detach takes the device of an image away; it is no error when it has none.
func (b Images) Detach(_ context.Context, id string) error { return loop.Detach(b.Path(id)) }

// Device is the device of an image; "" when it has none.
func (b Images) Device(_ context.Context, id string) (string, error) {
	device, err := loop.Find(b.Path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return device, err
}

// Attached are the IDs of images that have a device.
func (b Images) Attached(context.Context) ([]string, error) {
	all, err := loop.Under(b.Dir)
	var out []string
	for _, a := range all {
		out = append(out, filepath.Base(a.Image))
	}
	return out, err
}

// Taken is how many bytes images take on the disk.
func (b Images) Taken(_ context.Context, ids ...string) map[string]int64 {
	return each(ids, func(id string) (int64, bool) {
		var st unix.Stat_t
		err := unix.Stat(b.Path(id), &st)
		return st.Blocks * 512, err == nil
	})
}

// Free is how many bytes there are for more.
func (b Images) Free(context.Context) (int64, error) { return roomOf(b.Dir) }

// Missing says why an image is not as its record says; nil when it is.
func (b Images) Missing(_ context.Context, id string, size int64) error {
	st, err := os.Stat(b.Path(id))
	if err != nil {
		return err
	}
	if st.Size() < size {
		return fmt.Errorf("the image has %d bytes of %d", st.Size(), size)
	}
	return nil
}
