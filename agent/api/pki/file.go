package pki

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Files is a value that is read from files, and read again when they are replaced. What cannot be read leaves the last
// value.
type Files[T any] struct {
	paths []string
	read  func() (T, error)
	log   *slog.Logger
	value atomic.Pointer[T]
}

// NewFiles reads the files, which must be good now.
func NewFiles[T any](read func() (T, error), log *slog.Logger, paths ...string) (*Files[T], error) {
	f := &Files[T]{paths: paths, read: read, log: log}
	v, err := read()
	if err != nil {
		return nil, err
	}
	f.value.Store(&v)
	return f, nil
}

// Get returns the last value that was good.
func (f *Files[T]) Get() T { return *f.value.Load() }

// lookAgain is how soon files are looked at whose directories cannot be watched.
const lookAgain = time.Minute

// Run reads the files again whenever something happens in their directories, until ctx ends. The directories are
// watched, not the files: whoever replaces a certificate renames one over it, or moves the symbolic link that a mounted
// secret is behind. Where that cannot be watched, because the directory is gone or containers have taken what the
// machine has for watches, the files are looked at now and then.
func (f *Files[T]) Run(ctx context.Context) error {
	var w *fsnotify.Watcher
	defer func() {
		if w != nil {
			w.Close()
		}
	}()
	for told := ""; ; {
		var events chan fsnotify.Event
		var lost chan error
		var again <-chan time.Time
		err := f.watch(&w)
		if w != nil {
			events, lost = w.Events, w.Errors
		}
		if err != nil {
			again = time.After(lookAgain)
			if err.Error() != told {
				told = err.Error()
				f.log.Warn("files that are replaced are noticed a minute late", "files", f.paths, "error", err)
			}
		}
		f.reload() // what was replaced before the watch began
		select {
		case <-ctx.Done():
			return nil
		case <-again:
		case <-events:
		case err := <-lost:
			f.log.Debug("watch of files has lost events", "error", err)
		}
	}
}

// watch has the directories watched. Those that are already stay so.
func (f *Files[T]) watch(w **fsnotify.Watcher) error {
	if *w == nil {
		made, err := fsnotify.NewWatcher()
		if err != nil {
			return fmt.Errorf("watch certificates: %w", err)
		}
		*w = made
	}
	for _, p := range f.paths {
		if err := (*w).Add(filepath.Dir(p)); err != nil {
			return fmt.Errorf("watch certificates: %w", err)
		}
	}
	return nil
}

func (f *Files[T]) reload() {
	v, err := f.read()
	if err != nil {
		// Between the replacement of a certificate and that of its key they do not fit: an event follows.
		f.log.Warn("the last good one stays in use", "files", f.paths, "error", err)
		return
	}
	f.value.Store(&v)
}
