package api

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

// SocketWatch looks after the agent's socket: the directory tells when something in it changes, so that nothing looks there by the clock.
// It belongs to one goroutine.
type SocketWatch struct {
	// Changed has a value when it may be time for [SocketWatch.Gone].
	Changed <-chan struct{}

	path string
	own  os.FileInfo
}

// WatchSocket looks after the socket that [Listen] has made in the run directory, until ctx ends.
func WatchSocket(ctx context.Context, runDir string) (*SocketWatch, error) {
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
			case <-changes.Errors: // events were lost
			}
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	}()
	w := &SocketWatch{Changed: changed, path: filepath.Join(runDir, SocketName)}
	w.Replaced()
	return w, nil
}

// Gone says that the socket is not there any more, or another one is.
func (w *SocketWatch) Gone() bool {
	now, err := os.Lstat(w.path)
	return w.own == nil || err != nil || !os.SameFile(w.own, now)
}

// Replaced says that the socket that is there now is the agent's.
func (w *SocketWatch) Replaced() { w.own, _ = os.Lstat(w.path) }
