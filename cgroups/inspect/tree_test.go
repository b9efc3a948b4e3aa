package inspect

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestTreeFitsTerminal wants every preset but the wide one in 80 columns, with each figure as it is without a terminal,
// where nothing is cut.
func TestTreeFitsTerminal(t *testing.T) {
	captures, err := filepath.Glob("testdata/*.json.gz")
	if err != nil || len(captures) == 0 {
		t.Fatalf("no captures: %v", err)
	}
	all, err := loadColumns()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range captures {
		s, err := Load(c)
		if err != nil {
			t.Fatal(err)
		}
		s.nodes()[0].Children[0].Title = strings.Repeat("a-long-name-of-a-pod-", 8) + "\x1b[2J"
		for _, preset := range sortedKeys(all.Presets) {
			cols, err := all.list(all.Presets[preset])
			if err != nil {
				t.Fatal(err)
			}
			var whole, cut strings.Builder
			if err := printTree(&whole, s.nodes(), cols, 0); err != nil {
				t.Fatal(err)
			}
			if err := printTree(&cut, s.nodes(), cols, 80); err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(strings.TrimSpace(cut.String()), "\n")
			for i, line := range strings.Split(strings.TrimSpace(whole.String()), "\n") {
				if n := utf8.RuneCountInString(lines[i]); n > 80 && preset != "wide" {
					t.Errorf("%s, %s: a line of %d columns: %s", c, preset, n, lines[i])
				}
				figures := func(line string) []string {
					f := strings.Fields(line)
					return f[max(len(f)-len(cols), 0):]
				}
				if i > 0 && !slices.Equal(figures(line), figures(lines[i])) {
					t.Errorf("%s, %s: figures are cut:\n%s\n%s", c, preset, line, lines[i])
				}
			}
			if strings.Contains(whole.String(), "…") || !strings.Contains(cut.String(), "…") {
				t.Errorf("%s, %s: what is cut:\n%s%s", c, preset, whole.String(), cut.String())
			}
		}
	}
}

func TestBrief(t *testing.T) {
	for width, want := range map[int]string{
		20: "default/web-1-node", 18: "default/web-1-node", 12: "…/web-1-node", 10: "…/web…node", 5: "de…de",
	} {
		if got := brief("default/web-1-node", width); got != want {
			t.Errorf("%d: %q, want %q", width, got, want)
		}
	}
	if got := brief("(sandbox)", 6); got != "(s…ox)" {
		t.Errorf("%q", got)
	}
}
