package inspect

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

func fullScreen(n int) *screen {
	s := &screen{o: topOptions{sort: "cpu"}, width: 80, height: 24}
	for i := range n {
		limit, quota := uint64(128<<30), 1.5
		s.rows = append(s.rows, Row{
			Name: fmt.Sprintf("production/a-deployment-with-a-long-name-7d4b9c6f5-x%d", i), Cores: 12.34, Quota: &quota, Throttled: 100, Memory: 123 << 30, Limit: &limit,
			Pids: 1234, Read: 123 << 20, Write: 456 << 20, CPUPSI: 12.5, MemPSI: 99.9, IOPSI: 3,
		})
	}
	return s
}

// At any width that a terminal has the figures are whole, and names are cut.
func TestScreenKeepsItsNumbers(t *testing.T) {
	s := fullScreen(3)
	for width, want := range map[int][]string{
		80:  {"12.34", " 1.5", "100.0%", "123Gi", "128Gi", "96%", "1234", "123Mi", "456Mi", "99.9%"},
		120: {"12.34", " 1.5", "100.0%", "123Gi", "128Gi", "96%", "1234", "123Mi", "456Mi", "12.5%", "99.9%", "3.0%"},
	} {
		s.width = width
		for i, line := range strings.Split(strings.TrimSuffix(strip(s.draw()), "\n"), "\n") {
			if n := utf8.RuneCountInString(line); n > width {
				t.Errorf("line of %d columns on %d: %s", n, width, line)
			}
			if i < 3 {
				continue
			}
			for _, w := range append(want, "prod", "…", fmt.Sprintf("x%d", i-3)) {
				if !strings.Contains(line, w) {
					t.Errorf("%d columns: no %q in %q", width, w, line)
				}
			}
		}
	}
}

func strip(s string) string {
	for _, c := range []string{plain, bold, yellow, red} {
		s = strings.ReplaceAll(s, c, "")
	}
	return s
}

func TestScreenKeys(t *testing.T) {
	s := fullScreen(100)
	has := func(words ...string) {
		t.Helper()
		text := strip(s.draw())
		for _, w := range words {
			if !strings.Contains(text, w) {
				t.Errorf("no %q on\n%s", w, text)
			}
		}
		if n := strings.Count(text, "\n"); n > s.height {
			t.Errorf("%d lines on a screen of %d", n, s.height)
		}
	}
	has("1-20 of 100 pods", "x19 ")
	s.key("down", "")
	has("2-21 of 100")
	s.key("end", "")
	has("81-100 of 100", "x99 ")
	s.key("pgup", "")
	has("61-80 of 100")
	s.key("up", "")
	s.key("home", "")
	s.key("up", "")
	has("1-20 of 100")
	s.key("?", "?")
	has("sort by CPU", "scroll")
	if s.key("esc", "") {
		t.Error("esc leaves help, and then the screen")
	}
	s.key("/", "/")
	for _, k := range []string{"x", "4", "2", "q", "\x1b"} {
		if s.key(k, k) {
			t.Errorf("%q ends it while a name is typed", k)
		}
	}
	s.key("backspace", "")
	s.key("backspace", "")
	s.key("backspace", "")
	s.key("enter", "")
	has("/x42", "1-1 of 1 pods", "x42 ")
	s.key("esc", "")
	has("1-20 of 100")
	if !s.key("q", "q") || !s.key("ctrl+c", "") || !s.key("esc", "") {
		t.Error("q, esc and ctrl+c are the end")
	}
	if !strings.Contains(s.draw(), red) {
		t.Error("what is throttled is not red")
	}
	if s.plain = true; strings.Contains(s.draw(), "\x1b") {
		t.Error("colours where NO_COLOR asks for none")
	}
}
