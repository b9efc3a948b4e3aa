package excerpt

import (
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestFirst(t *testing.T) {
	refused := errors.New("too much")
	for name, c := range map[string]struct {
		refuse error
		writes []string
		kept   string
		over   bool
		err    error
	}{
		"nothing":            {nil, nil, "", false, nil},
		"less":               {nil, []string{"ab", "c"}, "abc", false, nil},
		"as much":            {nil, []string{"ab", "cd"}, "abcd", false, nil},
		"more":               {nil, []string{"ab", "cde", "f"}, "abcd", true, nil},
		"refused":            {refused, []string{"ab", "cde"}, "ab", true, refused},
		"refused afterwards": {refused, []string{"abcde", "f"}, "", true, refused},
		"not refused":        {refused, []string{"abcd", ""}, "abcd", false, nil},
	} {
		f := First{Most: 4, Refuse: c.refuse}
		var err error
		for _, w := range c.writes {
			var n int
			n, err = f.Write([]byte(w))
			if err == nil && n != len(w) {
				t.Errorf("%s: %d of %q are taken", name, n, w)
			}
		}
		if string(f.Bytes) != c.kept || f.Over != c.over || !errors.Is(err, c.err) {
			t.Errorf("%s: %q, over %v, %v", name, f.Bytes, f.Over, err)
		}
	}
}

// TestLast writes pieces of any size, and wants the end of all of them, and memory for twice as much at most.
func TestLast(t *testing.T) {
	const most = 64
	for range 1000 {
		l, all := Last{Most: most}, ""
		for range rand.IntN(20) {
			piece := strings.Repeat(string(rune('a'+rand.IntN(26))), rand.IntN(3*most))
			if n, err := io.WriteString(&l, piece); n != len(piece) || err != nil {
				t.Fatalf("%d of %d bytes are taken: %v", n, len(piece), err)
			}
			all += piece
			if want := all[max(0, len(all)-most):]; string(l.Bytes()) != want || len(l.kept) > 2*most {
				t.Fatalf("%d bytes kept, the last are %q, want %q", len(l.kept), l.Bytes(), want)
			}
		}
	}
}
