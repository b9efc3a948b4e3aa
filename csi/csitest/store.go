package csitest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/moby/sys/mountinfo"
)

const (
	defaultBytes = 32 << 20
	// canary is a file in each volume that is a directory. Where it is gone, somebody has removed what was in the
	// volume.
	canary = ".csitest"
)

// store is what volumes are kept in: a directory each, with the files, or with an image that a loop device has.
type store struct {
	dir  string
	kind Kind
	room sync.Mutex // held from the look at what is free until it is taken
}

func (s *store) home(id string) string  { return filepath.Join(s.dir, "volumes", id) }
func (s *store) image(id string) string { return filepath.Join(s.home(id), "image") }

// Data is where the files of a volume of the kind [Directory] are, for tests that look at them.
func (d *Driver) Data(id string) string { return d.store.data(id) }

func (s *store) data(id string) string { return filepath.Join(s.home(id), "data") }

// make makes what a volume is kept in, with the content of another directory of the driver's, if any.
func (s *store) make(v *Volume, from string) error {
	if strings.ContainsRune(v.ID, '/') || v.ID == "" {
		return fmt.Errorf("make volume: %q is no name of a directory", v.ID)
	}
	if err := os.MkdirAll(s.home(v.ID), 0o755); err != nil {
		return fmt.Errorf("make volume: %w", err)
	}
	if v.Block || s.kind == Loop {
		return s.makeImage(v, from)
	}
	if s.kind != Directory {
		return nil
	}
	if from != "" {
		if err := os.CopyFS(s.data(v.ID), os.DirFS(from)); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("copy volume: %w", err)
		}
		return nil
	}
	if err := os.MkdirAll(s.data(v.ID), 0o777); err != nil {
		return fmt.Errorf("make volume: %w", err)
	}
	return os.WriteFile(filepath.Join(s.data(v.ID), canary), []byte(v.ID+"\n"), 0o644)
}

func (s *store) makeImage(v *Volume, from string) error {
	image := s.image(v.ID)
	if _, err := os.Stat(image); err == nil {
		return nil
	}
	if from != "" {
		return copyFile(image, from)
	}
	if err := os.WriteFile(image+".new", nil, 0o600); err != nil {
		return fmt.Errorf("make image: %w", err)
	}
	if err := os.Truncate(image+".new", v.Bytes); err != nil {
		return fmt.Errorf("make image: %w", err)
	}
	if !v.Block {
		if out, err := exec.Command("mkfs.ext4", "-q", "-F", image+".new").CombinedOutput(); err != nil {
			return fmt.Errorf("format image: %w: %s", err, out)
		}
	}
	return os.Rename(image+".new", image)
}

func copyFile(to, from string) error {
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("copy image: %w", err)
	}
	return nil
}

// Reboot unmounts all that a reboot would, and forgets where volumes are.
func (d *Driver) Reboot() error {
	var at []string
	ids := map[string]bool{}
	for id, v := range d.State().Volumes {
		ids[id] = true
		if v.Stage != nil {
			at = append(at, v.Stage.Path)
		}
		for path := range v.Targets {
			at = append(at, path)
		}
	}
	all, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !slices.ContainsFunc(d.opts.Roots, func(root string) bool { return strings.HasPrefix(m.Mountpoint, root+"/") }), false
	})
	if err != nil {
		return fmt.Errorf("read mounts: %w", err)
	}
	for _, m := range all {
		at = append(at, m.Mountpoint)
	}
	slices.Sort(at)
	slices.Reverse(at)
	var errs []error
	for _, path := range at {
		errs = append(errs, unmount(path))
	}
	for id := range ids {
		errs = append(errs, d.store.detach(id))
	}
	d.ledger.update(func(*State) { d.ledger.forgetPlaces() })
	return errors.Join(errs...)
}
