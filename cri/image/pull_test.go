package image

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/berth-node/berth/cri/image/imagetest"
	"github.com/berth-node/berth/cri/snapshot"
	"github.com/berth-node/berth/cri/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a store with what it stands on.
type world struct {
	*Store
	dir   string
	snaps snapshot.Snapshotter
}

func newWorld(t testing.TB, change ...func(*Config)) *world {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: owners and devices of image files")
	}
	return openWorld(t, t.TempDir(), change...)
}

func openWorld(t testing.TB, dir string, change ...func(*Config)) *world {
	t.Helper()
	db, err := store.Open(filepath.Join(dir, "runtime.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	snaps, err := snapshot.NewOverlay(filepath.Join(dir, "snapshots"), db, nil)
	if errors.Is(err, snapshot.ErrUnsupported) {
		snaps, err = snapshot.NewNative(filepath.Join(dir, "snapshots"), db, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Root: filepath.Join(dir, "content"), DB: db, Snapshots: snaps}
	for _, f := range change {
		f(&c)
	}
	s, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), snaps.Clean(t.Context()), db.Close()); err != nil {
			t.Error(err)
		}
	})
	return &world{Store: s, dir: dir, snaps: snaps}
}

var twoLayers = imagetest.Spec{Name: "hello:v1", Layers: [][]imagetest.File{
	{{Name: "etc/"}, {Name: "etc/a", Body: "one"}, {Name: "etc/b", Body: "one"}, {Name: "tmp/", Mode: 0o1777}},
	{{Name: "etc/.wh.b"}, {Name: "etc/a", Body: "two"}, {Name: "tmp/x", Body: "x"}},
}}

func TestPull(t *testing.T) {
	w := newWorld(t)
	r := imagetest.NewRegistry(t)
	built := imagetest.Build(twoLayers)
	name, err := imagetest.Push(r.Host, built)
	if err != nil {
		t.Fatal(err)
	}
	img, err := w.Pull(t.Context(), name, nil, func(p Progress) { t.Log(p) })
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", img)
}
