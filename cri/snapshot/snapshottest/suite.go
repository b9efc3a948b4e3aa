// Package snapshottest is what every snapshotter must do, as tests.
package snapshottest

import (
	"errors"
	"os"
	"testing"

	"github.com/berth-node/berth/cri/snapshot"
)

// Run tests snapshotters that open makes, each on an empty directory. It needs root.
func Run(t *testing.T, open func(t *testing.T) snapshot.Snapshotter) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts filesystems")
	}
	for name, f := range map[string]func(*testing.T, snapshot.Snapshotter){
		"layers stack":              layersStack,
		"writes stay apart":         writesStayApart,
		"views are read-only":       viewsAreReadOnly,
		"prepare again is the same": prepareAgain,
		"in use":                    inUse,
		"remove twice":              removeTwice,
		"missing parent":            missingParent,
		"two fill one layer":        twoFillOneLayer,
		"abort":                     abort,
		"usage":                     usage,
		"diff":                      diff,
		"attributes":                attributes,
		"many layers":               manyLayers,
		"concurrent":                concurrent,
		"clean keeps all known":     cleanKeeps,
	} {
		t.Run(name, func(t *testing.T) { f(t, open(t)) })
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func want(t *testing.T, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("got error %v, want %v", err, target)
	}
}

// Commit makes a layer that fill writes; it is exported for the tests of snapshotters and their users.
func Commit(t *testing.T, s snapshot.Snapshotter, key, parent string, fill func(dir string, w snapshot.Whiteouts)) {
	t.Helper()
	l, err := s.Begin(t.Context(), key, parent)
	must(t, err)
	if fill != nil {
		fill(l.Dir(), l.Whiteouts())
	}
	must(t, l.Commit(t.Context()))
}

// Mount mounts what Prepare or View returned, until the end of the test.
func Mount(t *testing.T, mounts []snapshot.Mount, err error) (dir string) {
	t.Helper()
	must(t, err)
	dir = t.TempDir()
	for _, m := range mounts {
		must(t, m.Mount(dir))
	}
	t.Cleanup(func() {
		if err := snapshot.Unmount(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
