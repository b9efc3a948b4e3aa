package source

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-node/berth/agent/source/manifest"
)

// TestKept makes edits that are refused: it is said which pods run on as they were, and those alone.
func TestKept(t *testing.T) {
	h := start(t, t.TempDir(), nil)
	two := podYAML("a", "img:1") + "---\n" + podYAML("b", "img:1")
	h.write("two.yaml", two)
	h.waitImage("b", "img:1")
	for _, c := range []struct {
		edit, says string
		kept       []string
	}{
		{strings.Replace(two, "image: img:1", "imag: img:1", 1), "image", []string{"default/a-node1"}},
		{podYAML("a", "img:1") + "---\n{{{", "line", []string{"default/b-node1"}},
		{"{{{", "line", []string{"default/a-node1", "default/b-node1"}},
		{strings.Repeat("# long\n", manifest.MaxSize/7+1), "bytes", []string{"default/a-node1", "default/b-node1"}},
		{two + "---\n" + strings.Replace(podYAML("new", "img:1"), "image:", "imag:", 1), "image", nil},
	} {
		h.write("two.yaml", c.edit)
		if p := h.waitProblem("two.yaml", c.says); !slices.Equal(p.Kept, c.kept) {
			t.Errorf("%.60q: %+v, want %v", c.edit, p, c.kept)
		}
		h.write("two.yaml", two)
		h.wait("no problem", func() bool { return len(h.src.Problems()) == 0 || h.nudge() })
	}
	h.write("other.yaml", podYAML("a", "img:2"))
	if p := h.waitProblem("other.yaml", "Duplicate value"); p.Kept != nil {
		t.Errorf("a second claimant: %+v", p)
	}
}

// TestKeptLater has nowhere to keep the manifests at first, as on a disk that is read-only: they are kept when they can
// be.
func TestKeptLater(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(state, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	h := start(t, dir, func(c *Config) { c.StateDir = state })
	h.write("a.yaml", podYAML("a", "img:1"))
	h.waitImage("a", "img:1")
	if err := os.Remove(state); err != nil {
		t.Fatal(err)
	}
	h.write("b.yaml", podYAML("b", "img:1")) // it need not be the same manifest that wakes it
	h.waitImage("b", "img:1")
	end := time.Now().Add(patience)
	for kept := 0; kept != 2; {
		entries, err := os.ReadDir(state)
		if kept = len(entries); kept != 2 && time.Now().After(end) {
			t.Fatalf("%d manifests are kept (%v), want 2", kept, err)
		}
		time.Sleep(time.Millisecond)
	}
}

// TestKeptAmongOthers: a file that is no kept manifest is somebody's, and stays; a damaged one of ours goes.
func TestKeptAmongOthers(t *testing.T) {
	state, dir := t.TempDir(), t.TempDir()
	for _, name := range []string{"pod.yaml", "pod.json", "0123456789abcdef.json", "0123456789abcdef0123456789abcdef.json"} {
		if err := os.WriteFile(filepath.Join(state, name), []byte(podYAML("x", "img:1")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h := start(t, dir, func(c *Config) { c.StateDir = state })
	h.write("a.yaml", podYAML("a", "img:1"))
	h.waitImage("a", "img:1")
	for name, want := range map[string]bool{
		"pod.yaml": true, "pod.json": true, "0123456789abcdef.json": true, "0123456789abcdef0123456789abcdef.json": false,
	} {
		if _, err := os.Lstat(filepath.Join(state, name)); (err == nil) != want {
			t.Errorf("%s: is there %v, want %v (%v)", name, err == nil, want, err)
		}
	}
}
