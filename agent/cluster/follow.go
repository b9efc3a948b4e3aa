package cluster

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// settleFor is how long nothing must happen before files are read: who does not replace them as a whole writes them
	// in pieces, and certificate and key one after the other. settleMost is the longest that is waited for it.
	settleFor  = 100 * time.Millisecond
	settleMost = 2 * time.Second
	// lookEvery is for file systems that tell of no change, as one of a network.
	lookEvery = time.Minute
)

// follow calls changed whenever something may have happened to files, until ctx ends. The directories are watched, not
// the files: whoever replaces one renames another over it, or moves a symbolic link.
func follow(ctx context.Context, log *slog.Logger, files func() []string, changed func()) {
	var events chan fsnotify.Event
	var errs chan error
	w, err := fsnotify.NewWatcher()
	if err != nil {
		log.Warn("credentials of the API server are looked at once a minute only", "error", err)
		w = nil
	} else {
		defer w.Close()
		events, errs = w.Events, w.Errors
	}
	add(w, files())
	changed() // what happened before the watch began
	add(w, files())
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	settled := time.NewTimer(settleFor)
	settled.Stop()
	var first time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-errs: // events were lost: that is one
			if !ok {
				return
			}
		case <-events:
		case <-look.C:
			first = time.Time{}
			changed()
			add(w, files()) // those that it refers to now
			continue
		case <-settled.C:
			first = time.Time{}
			changed()
			add(w, files())
			continue
		}
		if first.IsZero() {
			first = time.Now()
		}
		if time.Since(first) < settleMost {
			settled.Reset(settleFor)
		}
	}
}

// add watches the directories of files, and of what they are links to; of one that is not there yet, what is above it.
func add(w *fsnotify.Watcher, files []string) {
	if w == nil {
		return
	}
	for _, f := range files {
		dirs := []string{filepath.Dir(f)}
		if real, err := filepath.EvalSymlinks(f); err == nil && filepath.Dir(real) != dirs[0] {
			dirs = append(dirs, filepath.Dir(real))
		}
		for _, d := range dirs {
			for ; ; d = filepath.Dir(d) {
				if st, err := os.Stat(d); err == nil && st.IsDir() || d == filepath.Dir(d) {
					break
				}
			}
			_ = w.Add(d) // what cannot be watched is looked at
		}
	}
}
