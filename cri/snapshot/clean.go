package snapshot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// Clean moves what a crash left to the trash. What takes long, deleting it, nobody waits for.
func (s *snapshotter) Clean(ctx context.Context) error {
	orphans, err := s.orphans()
	if err != nil {
		return fmt.Errorf("clean snapshots: %w", err)
	}
	if len(orphans) > 0 {
		if err := unmountOrphans(s.dirs.root, orphans); err != nil {
			return fmt.Errorf("clean snapshots: %w", err)
		}
	}
	s.mu.Lock()
	var errs []error
	for id, dir := range orphans {
		if _, ok := s.pending[id]; !ok {
			errs = append(errs, s.trash.discard(dir))
		}
	}
	s.mu.Unlock()
	s.trash.empty() // of what the last run had no time for
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("clean snapshots: %w", err)
	}
	return ctx.Err()
}

// orphans returns the directories that nothing explains, by their number. One that has a label which says nothing is
// not among them: somebody may run on it, or an image may be gone for good with it. It is left to people, who are told.
func (s *snapshotter) orphans() (map[uint64]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := map[uint64]struct{}{}
	for _, r := range s.table.All() {
		known[r.ID] = struct{}{}
	}
	found := map[uint64]string{}
	for _, d := range []string{s.dirs.root, s.dirs.unfinished()} {
		entries, err := os.ReadDir(d)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			id, ok := parseID(e.Name())
			_, explained := known[id]
			_, busy := s.pending[id]
			if ok && !explained && !busy && !s.labels.damaged(id) {
				found[id] = filepath.Join(d, e.Name())
			}
		}
	}
	return found, nil
}

// unmountOrphans unmounts what is still mounted from those directories below root. An overlay names its writable
// directory in its options; a bind mount shows the path of its directory from the root of the filesystem.
func unmountOrphans(root string, orphans map[uint64]string) error {
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return err
	}
	var home *mountinfo.Info // the mount that root is on: the longest mount point, and of equal ones the uppermost
	for _, m := range mounts {
		if within(m.Mountpoint, root) && (home == nil || len(m.Mountpoint) >= len(home.Mountpoint)) {
			home = m
		}
	}
	if home == nil {
		return fmt.Errorf("find the filesystem of %s: %w", root, os.ErrNotExist)
	}
	sources := map[string]struct{}{}
	binds := map[string]struct{}{}
	for _, dir := range orphans {
		sources["upperdir="+dir+"/fs"] = struct{}{}
		binds[filepath.Join(home.Root, strings.TrimPrefix(dir, home.Mountpoint), "fs")] = struct{}{}
	}
	var errs []error
	for _, m := range mounts {
		_, ours := binds[m.Root]
		ours = ours && m.Major == home.Major && m.Minor == home.Minor
		if m.FSType == "overlay" {
			for o := range strings.SplitSeq(m.VFSOptions, ",") {
				if _, ok := sources[o]; ok {
					ours = true
				}
			}
		}
		if ours {
			errs = append(errs, Unmount(m.Mountpoint))
		}
	}
	return errors.Join(errs...)
}

// within says that path is dir or below it.
func within(dir, path string) bool {
	return dir == "/" || path == dir || strings.HasPrefix(path, dir+"/")
}
