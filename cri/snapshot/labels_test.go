package snapshot

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/berth-node/berth/cri/store"
)

// openAgain opens the snapshots of a root, with the records or, lost, without.
func openAgain(t *testing.T, root string, lost bool) *snapshotter {
	t.Helper()
	path := filepath.Join(root, "db")
	if lost {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	db, err := store.Open(store.Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	s, err := open(root, db, nil, func(d directories) driver { return &overlay{d} })
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSnapshotsFoundAgain: a layer that is not on the disk yet, a writable snapshot and a view have lost their records,
// and are what they were during this boot.
func TestSnapshotsFoundAgain(t *testing.T) {
	root := t.TempDir()
	s := openAgain(t, root, false)
	l, err := s.Begin(t.Context(), "layer", "")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := map[string]record{}
	if _, err := s.Prepare(t.Context(), "own", "layer"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.View(t.Context(), "own-1", "layer"); err != nil {
		t.Fatal(err)
	}
	maps.Insert(want, s.table.All())
	s = openAgain(t, root, true)
	for key, r := range want {
		if got, err := s.table.Get(key); err != nil || got != r {
			t.Errorf("%s: got %+v, %v, want %+v", key, got, err, r)
		}
	}
	if err := s.Remove(t.Context(), "layer"); err == nil {
		t.Error("a layer was removed that others stand on")
	}
	for key, r := range want {
		if err := writeLabelAt(s.dirs.label(r.ID), label{Key: key, Parent: r.Parent, Kind: r.Kind, Boot: "another"}); err != nil {
			t.Fatal(err)
		}
	}
	if got := openAgain(t, root, true).List(); len(got) > 0 {
		t.Errorf("after a boot: %v", got)
	}
}

// TestRemovalCutOff: a crash has left a record whose directory is in the trash. It goes, though the trash is not empty
// yet.
func TestRemovalCutOff(t *testing.T) {
	root := t.TempDir()
	s := openAgain(t, root, false)
	if _, err := s.Prepare(t.Context(), "own", ""); err != nil {
		t.Fatal(err)
	}
	r, err := s.table.Get("own")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.trash.make(); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(s.dirs.dir(r.ID), filepath.Join(s.dirs.trash(), filepath.Base(s.dirs.dir(r.ID)))); err != nil {
		t.Fatal(err)
	}
	if err := s.load(); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), "own"); err != nil {
		t.Error(err)
	}
}

// TestDamagedLabels: a snapshot whose record is lost and whose label is damaged is not taken for what a crash has left,
// and neither are its mounts. One that a loss of power has left is, and so is one without a label.
func TestDamagedLabels(t *testing.T) {
	root := t.TempDir()
	s := openAgain(t, root, false)
	labels := map[string]string{
		"halved": `{"Key":"halv`, "flipped": "\x00\xff\xed", "nobody's": "{}", "a number": `{"Key":7}`, "empty": "", "none": "",
	}
	dirs := map[string]string{}
	for key := range labels {
		if _, err := s.Prepare(t.Context(), key, ""); err != nil {
			t.Fatal(err)
		}
		r, err := s.table.Get(key)
		if err != nil {
			t.Fatal(err)
		}
		dirs[key] = s.dirs.dir(r.ID)
	}
	for key, text := range labels {
		err := os.WriteFile(filepath.Join(dirs[key], labelName), []byte(text), 0o600)
		if key == "none" {
			err = os.Remove(filepath.Join(dirs[key], labelName))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s = openAgain(t, root, true)
	if err := s.Clean(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Swept(t.Context()); err != nil {
		t.Fatal(err)
	}
	for key, dir := range dirs {
		_, err := os.Lstat(filepath.Join(dir, "fs"))
		if left := key == "empty" || key == "none"; left != errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", key, err)
		}
	}
	// Its number is nobody else's.
	if _, err := s.Prepare(t.Context(), "new", ""); err != nil {
		t.Fatal(err)
	}
	if r, err := s.table.Get("new"); err != nil || slices.Contains(slices.Collect(maps.Values(dirs)), s.dirs.dir(r.ID)) {
		t.Errorf("%+v, %v", r, err)
	}
}
