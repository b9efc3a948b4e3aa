package source

import (
	"slices"
	"strings"
	"testing"

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
		h.wait("no problem", func() bool { return len(h.src.Problems()) == 0 })
	}
	h.write("other.yaml", podYAML("a", "img:2"))
	if p := h.waitProblem("other.yaml", "Duplicate value"); p.Kept != nil {
		t.Errorf("a second claimant: %+v", p)
	}
}
