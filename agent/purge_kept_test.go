package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/berth-node/berth/agent/config"
)

// TestPurgeLeavesManifestsOfOthers: of the directory of last good manifests only these go.
func TestPurgeLeavesManifestsOfOthers(t *testing.T) {
	p := config.Place{RootDir: t.TempDir(), RunDir: t.TempDir(), LogDir: t.TempDir()}
	dir := config.KeptManifests(p.RootDir)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	ours := filepath.Join(dir, "0123456789abcdef0123456789abcdef.json")
	for _, path := range []string{ours, ours + ".new", filepath.Join(dir, "pod.yaml")} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	gone, empty := leftBehind(p, slog.New(slog.DiscardHandler))
	if !slices.Contains(gone, ours) || !slices.Contains(gone, ours+".new") {
		t.Errorf("kept manifests stay: %q", gone)
	}
	if slices.Contains(gone, dir) || slices.Contains(gone, filepath.Join(dir, "pod.yaml")) {
		t.Errorf("somebody's manifest goes: %q", gone)
	}
	if at, root := slices.Index(empty, dir), slices.Index(empty, p.RootDir); at < 0 || at > root {
		t.Errorf("directories that go when they are empty: %q", empty)
	}
}
