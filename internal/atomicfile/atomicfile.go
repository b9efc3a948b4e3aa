// Package atomicfile replaces files as a whole: whoever reads one has what it was or what it is to be, whenever the
// writer was killed.
package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Part is what the name of a file ends with until it has its own. A writer that was killed leaves one, which the next
// writes over.
const Part = ".new"

// Write makes data the content of the file at path, which has one writer at a time. It fails with [fs.ErrNotExist] when
// the directory is not there. After a loss of power the file may be empty.
func Write(path string, data []byte, mode fs.FileMode) error { return write(path, data, mode, false) }

// WriteSynced is Write for what must outlive a loss of power, too.
func WriteSynced(path string, data []byte, mode fs.FileMode) error {
	if err := write(path, data, mode, true); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// WriteSyncedIn is WriteSynced for a file in a directory that is made when it is first needed, with its name in the one
// above.
func WriteSyncedIn(path string, data []byte, mode fs.FileMode) error {
	err := WriteSynced(path, data, mode)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	dir := filepath.Dir(path)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := SyncDir(filepath.Dir(dir)); err != nil {
		return err
	}
	return WriteSynced(path, data, mode)
}

// Read reads a file of so many bytes at most. What is no file is an [ErrNoFile] at once: to open a pipe waits for who
// writes to it.
func Read(path string, most int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: path, Err: ErrNoFile}
	}
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		err = &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("it has more than %d bytes", most)}
	}
	if err != nil {
		return nil, err
	}
	return data, nil
}

// ErrNoFile is what is wrong with a directory, a pipe, a socket or a device.
var ErrNoFile = errors.New("it is no file")

// Over writes data over what the file at path has, or makes it. It takes neither a new inode nor a look at the
// directory, which is what costs where many files of one directory are written at once. Who is killed at it may leave a
// mixture that begins with the new: whoever reads the file has to tell that.
func Over(path string, data []byte, mode fs.FileMode) error {
	fd, err := again(func() (int, error) {
		return unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, uint32(mode.Perm()))
	})
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	err = writeAll(fd, data)
	var st unix.Stat_t
	if err == nil {
		err = unix.Fstat(fd, &st)
	}
	if err == nil && st.Size > int64(len(data)) {
		_, err = again(func() (int, error) { return 0, unix.Ftruncate(fd, int64(len(data))) })
	}
	// It is closed also when a signal interrupts that.
	if cerr := unix.Close(fd); err == nil && cerr != nil && !errors.Is(cerr, unix.EINTR) {
		err = cerr
	}
	if err != nil {
		return &fs.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

// MkdirSynced makes a directory with those above it that are not there, each with its name outliving a loss of power.
func MkdirSynced(path string, mode fs.FileMode) error {
	err := os.Mkdir(path, mode)
	above := filepath.Dir(path)
	if errors.Is(err, fs.ErrNotExist) && above != path {
		if err := MkdirSynced(above, mode); err != nil {
			return err
		}
		err = os.Mkdir(path, mode)
	}
	// Of what is there the kernel may say that it cannot be made there.
	if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.EROFS) {
		if st, serr := os.Stat(path); serr != nil || !st.IsDir() {
			return err
		}
		return nil
	}
	if err != nil {
		return err
	}
	return SyncDir(above)
}

// write uses bare system calls. An os.File is registered with the runtime's poller, and os.Rename looks first at what
// is there: that is twice the calls, and the records of one pod are written a dozen times while it starts.
func write(path string, data []byte, mode fs.FileMode, synced bool) error {
	part := path + Part
	fd, err := again(func() (int, error) {
		return unix.Open(part, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_CLOEXEC, uint32(mode.Perm()))
	})
	if err != nil {
		return &fs.PathError{Op: "open", Path: part, Err: err}
	}
	if err = writeAll(fd, data); err != nil {
		err = &fs.PathError{Op: "write", Path: part, Err: err}
	}
	if err == nil && synced {
		if _, err = again(func() (int, error) { return 0, unix.Fsync(fd) }); err != nil {
			err = &fs.PathError{Op: "sync", Path: part, Err: err}
		}
	}
	// It is closed also when a signal interrupts that.
	if cerr := unix.Close(fd); err == nil && cerr != nil && !errors.Is(cerr, unix.EINTR) {
		err = &fs.PathError{Op: "close", Path: part, Err: cerr}
	}
	if err == nil {
		if _, rerr := again(func() (int, error) { return 0, unix.Rename(part, path) }); rerr != nil {
			err = &os.LinkError{Op: "rename", Old: part, New: path, Err: rerr}
		}
	}
	if err != nil {
		_ = os.Remove(part) // on a full disk a half would be in everybody's way
	}
	return err
}

func writeAll(fd int, data []byte) error {
	for len(data) > 0 {
		n, err := again(func() (int, error) { return unix.Write(fd, data) })
		if err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// again makes a system call until no signal interrupts it.
func again(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// SyncDir has the names in a directory outlive a loss of power.
func SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
