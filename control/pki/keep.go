package pki

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/atomicfile"
	"github.com/berth-node/berth/internal/disk"
)

const (
	// lockLimit bounds the wait for another process that changes the files, which takes it well below a second.
	lockLimit = 10 * time.Second
	// lockAgain is how soon it is asked again: the kernel's lock has no wait with an end.
	lockAgain = 20 * time.Millisecond
	lockName  = "lock"
)

// Run renews what is due until ctx ends, and has changed told of it until that succeeds. Servers and clients of this
// process hear of it by their files.
func (s *Store) Run(ctx context.Context, changed func() error) {
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for told := true; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		told = look(s, told, changed)
	}
}

// look renews what is due. told is whether changed has heard of all that was renewed before, and it returns whether it
// has now.
func look(s *Store, told bool, changed func() error) bool {
	made, err := s.Renew(false)
	if err != nil {
		s.opts.Log.Error("certificates are not renewed", "error", err)
	}
	if len(made) > 0 {
		s.opts.Log.Info("certificates renewed", "names", made)
	} else if told {
		return true
	}
	if err := changed(); err != nil {
		s.opts.Log.Error("what has copies of certificates is not written again", "error", err)
		return false
	}
	return true
}

// turn is whose turn it is to change files: certificates are renewed while authorities are rotated, and by a command
// beside a server that runs.
type turn struct{ mu sync.Mutex }

// take keeps all others of this process, and of others, from changing the files of a directory.
func (t *turn) take(dir string) (end func(), err error) {
	t.mu.Lock()
	defer func() {
		if err != nil {
			t.mu.Unlock()
		}
	}()
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock certificates: %w", err)
	}
	for late := time.Now().Add(lockLimit); ; time.Sleep(lockAgain) {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close(); t.mu.Unlock() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(late) {
			break
		}
	}
	f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("lock certificates: another berth-control has had %s for %s: is it stopped or stuck?", path, lockLimit)
	}
	return nil, fmt.Errorf("lock certificates %s: %w", path, err)
}

// clearParts removes the parts of files that who was killed has left: there is a key in them, and nobody writes over
// one for months.
func clearParts(dir string) error {
	for _, of := range []string{"*.pem", "*.crt"} {
		left, err := filepath.Glob(filepath.Join(dir, of+atomicfile.Part))
		if err != nil {
			return err
		}
		for _, path := range left {
			if err := os.Remove(path); err != nil {
				return fmt.Errorf("remove what is left of a certificate: %w", err)
			}
		}
	}
	return nil
}

// Alone does what nobody else may do meanwhile who has the certificates of the directory.
func (s *Store) Alone(do func() error) error {
	unlock, err := s.turn.take(s.dir)
	if err != nil {
		return err
	}
	defer unlock()
	return do()
}

// putAside gives a damaged file another name, for whoever wants to know how it came to be so.
func putAside(path string, now time.Time) (string, error) {
	aside := fmt.Sprintf("%s.bad-%d", path, now.UnixNano())
	return aside, os.Rename(path, aside)
}

// unreadable is the error of an authority that must not be replaced.
func unreadable(path string, cause error) error {
	switch {
	case disk.Scarce(cause):
		return fmt.Errorf("read certificate authority %s: %w", path, cause)
	case errors.Is(cause, fs.ErrPermission):
		return fmt.Errorf("read certificate authority %s: %w; have it belong to the user that serves, who is %d", path, cause, os.Geteuid())
	}
	return fmt.Errorf("read certificate authority %s: %w; "+
		"put back a copy of the file, or remove the directory to begin anew, with which all certificates end", path, cause)
}
