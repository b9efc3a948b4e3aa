package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/atomicfile"
)

// createWhole makes a file that is not there yet, with all that is in it at once, and so that it outlives a loss of
// power. One that is there fails it with fs.ErrExist. Whoever reads directories leaves names that begin with a dot
// alone; of a writer that was killed such a file stays, which the next one writes over.
func createWhole(path string, data []byte) error {
	dir, name := filepath.Split(filepath.Clean(path))
	if dir == "" {
		dir = "."
	}
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	defer d.Close()
	// Two writers of one name would write into one file.
	if err := lock(d); err != nil {
		return fmt.Errorf("write manifest: lock %s: %w", dir, err)
	}
	part := filepath.Join(dir, "."+name+atomicfile.Part)
	if err := atomicfile.WriteSynced(part, data, 0o600); err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	if err := place(part, path); err != nil {
		_ = os.Remove(part)
		return fmt.Errorf("write manifest: %w", err)
	}
	return atomicfile.SyncDir(dir)
}

// writing is how long another writer of the directory is waited for.
const writing = 30 * time.Second

// lock takes a directory. A wait in the kernel could not be given up.
func lock(dir *os.File) error {
	for end := time.Now().Add(writing); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(end) {
			return err
		}
	}
}

// place gives a file its name, which no other file has.
func place(part, path string) error {
	err := unix.Renameat2(unix.AT_FDCWD, part, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		// Some file systems, NFS among them, know no flags of a rename; a link does not replace either.
		if err = os.Link(part, path); err == nil {
			return os.Remove(part)
		}
	}
	if err != nil {
		return &os.LinkError{Op: "rename", Old: part, New: path, Err: err}
	}
	return nil
}
