package socket

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

// Watch looks after the agent's socket: the directory tells when something in it changes, so that nothing looks there by the clock.
// It belongs to one goroutine.
type Watch struct {
	// Changed has a value when it may be time for [Watch.Gone].
	Changed <-chan struct{}

	path string
	own  os.FileInfo
}

// NewWatch looks after the socket that [Listen] has made in the run directory, until ctx ends.
func NewWatch(ctx context.Context, runDir string) (*Watch, error) {
	changes, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch socket: %w", err)
	}
	if err := changes.Add(runDir); err != nil {
		changes.Close()
		return nil, fmt.Errorf("watch socket: %w", err)
	}
	changed := make(chan struct{}, 1)
	changed <- struct{}{} // it may have gone before
	go func() {
		defer changes.Close()
		for {
			select {
			case <-ctx.Done():
				return
			case <-changes.Events:
			case <-changes.Errors: //nolint:errcheck // events were lost: it is looked at as if there had been one
			}
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	}()
	w := &Watch{Changed: changed, path: filepath.Join(runDir, Name)}
	w.Replaced()
	return w, nil
}

// Gone says that the socket is not there any more, or another one is.
func (w *Watch) Gone() bool {
	now, err := os.Lstat(w.path)
	return w.own == nil || err != nil || !os.SameFile(w.own, now)
}

// Replaced says that the socket that is there now is the agent's.
func (w *Watch) Replaced() { w.own, _ = os.Lstat(w.path) }
