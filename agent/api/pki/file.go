package pki

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"

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

// Run reads the files again whenever something happens in their directories, until ctx ends. The directories are
// watched, not the files: whoever replaces a certificate renames one over it, or moves the symbolic link that a mounted
// secret is behind.
func (f *Files[T]) Run(ctx context.Context) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch certificates: %w", err)
	}
	defer w.Close()
	for _, p := range f.paths {
		if err := w.Add(filepath.Dir(p)); err != nil {
			return fmt.Errorf("watch certificates: %w", err)
		}
	}
	f.reload() // what was replaced before the watch began
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.Events:
		case err := <-w.Errors:
			f.log.Debug("watch of certificates has lost events", "error", err)
		}
		f.reload()
	}
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
