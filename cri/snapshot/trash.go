package snapshot

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/berth-node/berth/internal/disk"
	"github.com/berth-node/berth/internal/filetree"
)

// sweepAgain is how long after a failure the trash is tried again.
const sweepAgain = 10 * time.Minute

// trash is where the directories of removed snapshots wait until they are deleted in the background. Deleting takes
// long, and nobody waits for it.
type trash struct {
	dir string
	log *slog.Logger

	mu       sync.Mutex
	sweeping chan struct{}    // closed when the trash, which is being deleted, is; nil: it is not
	stuck    map[string]error // what could not be deleted
	again    *time.Timer      // to try that again
}

// make makes the directory before there is anything for it: where there is no inode left, nothing could be removed that
// has to be moved to a new directory first.
func (t *trash) make() error { return os.MkdirAll(t.dir, 0o700) }

// discard moves a directory to the trash and has the trash emptied.
func (t *trash) discard(dir string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	err := t.make()
	if err == nil {
		err = os.Rename(dir, filepath.Join(t.dir, filepath.Base(dir)))
	}
	if disk.Full(err) {
		return filetree.RemoveAll(context.Background(), dir) // who waits for it gets the space that it needs
	}
	if err != nil {
		return err
	}
	t.startSweep()
	return nil
}

// empty has the trash emptied, as of what the last run had no time for.
func (t *trash) empty() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.startSweep()
}

// startSweep starts the sweep unless it runs; the caller holds mu.
func (t *trash) startSweep() {
	if t.sweeping == nil {
		t.sweeping = make(chan struct{})
		go t.sweep()
	}
}

// sweep deletes what is in the trash and ends. What cannot be deleted now takes disk space, and nothing else: it is
// logged once and tried again later.
func (t *trash) sweep() {
	for {
		failed := t.delete()
		t.mu.Lock()
		left, err := os.ReadDir(t.dir)
		if err != nil || len(left) == len(failed) {
			close(t.sweeping)
			t.sweeping, t.stuck = nil, failed
			if len(failed) > 0 && t.again == nil {
				t.again = time.AfterFunc(sweepAgain, func() {
					t.mu.Lock()
					defer t.mu.Unlock()
					t.again = nil
					t.startSweep()
				})
			}
			t.mu.Unlock()
			return
		}
		t.mu.Unlock()
	}
}

// delete deletes what is in the trash, and returns what could not be deleted, by name.
func (t *trash) delete() map[string]error {
	failed := map[string]error{}
	entries, err := os.ReadDir(t.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.log.Warn("removed snapshots take disk space", "error", err)
	}
	for _, e := range entries {
		// Nobody waits for it, so that it waits for everybody's reads and writes.
		err := filetree.Idle(func() error {
			return filetree.RemoveAll(context.Background(), filepath.Join(t.dir, e.Name()))
		})
		if err != nil {
			failed[e.Name()] = err
			t.mu.Lock()
			_, told := t.stuck[e.Name()]
			t.mu.Unlock()
			if !told {
				t.log.Warn("removed snapshot takes disk space until it can be deleted", "error", err)
			}
		}
	}
	return failed
}

// wait waits until nothing is being deleted, and returns what could not be.
func (t *trash) wait(ctx context.Context) error {
	t.mu.Lock()
	sweeping := t.sweeping
	t.mu.Unlock()
	if sweeping != nil {
		select {
		case <-sweeping:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for _, err := range t.stuck {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
