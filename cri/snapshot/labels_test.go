package snapshot

import (
	"maps"
	"os"
	"path/filepath"
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
