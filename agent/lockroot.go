package agent

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/disk"
)

// LockRoot takes what agents have in a root directory for this process, until what it returns is called or the process
// ends. Two that shared it, whose run directories differ, would each take what the other's pods have there for what
// nobody wants, and remove it. The directory itself is locked, so that there is nothing to be left behind. A runtime in
// a process of its own may share it: it holds its own records.
func LockRoot(rootDir string) (release func(), err error) {
	f, err := lockDir(rootDir)
	if err != nil {
		return nil, fmt.Errorf("lock root directory %s: %w", rootDir, err)
	}
	return func() {
		if f != nil {
			f.Close()
		}
	}, nil
}

// lockDir takes a directory, which is made. It is nil where there is none and the disk cannot be written, so that
// nothing of anybody's is there.
func lockDir(dir string) (*os.File, error) {
	const tries = 3 // somebody may be removing all of it
	for range tries {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			if disk.Unwritable(err) {
				return nil, nil
			}
			return nil, err
		}
		f, err := os.Open(dir)
		if err != nil {
			return nil, err
		}
		if err = flock(f); errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("%w, with another run directory: --root-dir must differ, too", ErrRunning)
		}
		if err != nil {
			f.Close()
			return nil, err
		}
		held, err := f.Stat()
		named, nerr := os.Stat(dir)
		if err == nil && nerr == nil && os.SameFile(held, named) {
			return f, nil
		}
		f.Close()
	}
	return nil, errors.New("it is being removed")
}
