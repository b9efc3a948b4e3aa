package snapshot

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-node/berth/cri/store"
)

// openAgain opens the shelf of a root, with the records or, lost, without.
func openAgain(t *testing.T, root string, lost bool) *shelf {
	t.Helper()
	path := filepath.Join(root, "db")
	if lost {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	db, err := store.Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	s, err := openShelf(root, "overlay", db, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSnapshotsFoundAgain: a layer that is not on the disk yet, a writable snapshot and a view have lost their records, and are what they
// were during this boot.
func TestSnapshotsFoundAgain(t *testing.T) {
	root := t.TempDir()
	s := openAgain(t, root, false)
	l, err := s.begin("layer", "", WhiteoutsOverlay)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := map[string]record{}
	for key, kind := range map[string]Kind{"own": KindActive, "own-1": KindView} {
		if _, err := s.add(key, "layer", kind); err != nil {
			t.Fatal(err)
		}
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
		if err := writeLabelAt(s.labelPath(r.ID), label{Key: key, Parent: r.Parent, Kind: r.Kind, Boot: "another"}); err != nil {
			t.Fatal(err)
		}
	}
	if got := openAgain(t, root, true).List(); len(got) > 0 {
		t.Errorf("after a boot: %v", got)
	}
}

// TestRemovalCutOff: a crash has left a record whose directory is in the trash. It goes, though the trash is not empty yet.
func TestRemovalCutOff(t *testing.T) {
	root := t.TempDir()
	s := openAgain(t, root, false)
	r, err := s.add("own", "", KindActive)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(s.trash(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(s.dir(r.ID), filepath.Join(s.trash(), filepath.Base(s.dir(r.ID)))); err != nil {
		t.Fatal(err)
	}
	if err := s.load(); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), "own"); err != nil {
		t.Error(err)
	}
}
