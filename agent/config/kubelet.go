package config

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/spf13/pflag"
)

// KubeletNames has flags be named as kubelet names them, too: kubeadm and the scripts of others start it with these.
func KubeletNames(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	switch name {
	case "hostname-override":
		name = "node-name"
	case "container-runtime-endpoint":
		name = "runtime"
	case "pod-manifest-path":
		name = "manifest-dir"
	}
	return pflag.NormalizedName(name)
}

// Missing says whether a file is named and not there.
func (s *Sources) Missing() (bool, error) {
	if s.File == "" {
		return false, nil
	}
	_, err := os.Stat(s.File)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("read --config: %w", err)
	}
	return false, nil
}

// awaitLook is how often a file is looked for whose directory does not exist yet, so that no event tells of it.
const awaitLook = 2 * time.Second

// AwaitFile returns when a file is there, or with the error of ctx.
func AwaitFile(ctx context.Context, path string) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch for %s: %w", path, err)
	}
	defer w.Close()
	for {
		watched := w.Add(filepath.Dir(path)) == nil // it is watched once, however often it is added
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		var again <-chan time.Time
		if !watched {
			again = time.After(awaitLook)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.Events:
		case err := <-w.Errors:
			return fmt.Errorf("watch for %s: %w", path, err)
		case <-again:
		}
	}
}
