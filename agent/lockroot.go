package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/disk"
)

// Part is a part of a root directory that one process at a time has. An agent and the runtime that it uses may be two.
type Part struct {
	dir  string
	mode os.FileMode
}

// The parts of a root directory.
var (
	Pods       = Part{".", 0o711}       // volumes and records of pods
	Containers = Part{"content", 0o700} // images, layers and records of the runtime
)

// LockRoot takes parts of a root directory for this process, until what it returns is called or the process ends. Two
// that shared one, whose run directories differ, would each take what the other's pods have there for what nobody
// wants, and remove it. The directories themselves are locked, so that there is nothing to be left behind.
func LockRoot(rootDir string, parts ...Part) (release func(), err error) {
	var held []*os.File
	release = func() {
		for _, f := range held {
			f.Close()
		}
	}
	for _, p := range parts {
		f, err := lockDir(filepath.Join(rootDir, p.dir), p.mode)
		if err != nil {
			release()
			return nil, fmt.Errorf("lock root directory %s: %w", rootDir, err)
		}
		if f != nil {
			held = append(held, f)
		}
	}
	return release, nil
}

// lockDir takes a directory, which is made. It is nil where there is none and the disk cannot be written, so that
// nothing of anybody's is there.
func lockDir(dir string, mode os.FileMode) (*os.File, error) {
	const tries = 3 // somebody may be removing all of it
	for range tries {
		if err := os.MkdirAll(dir, mode); err != nil {
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
