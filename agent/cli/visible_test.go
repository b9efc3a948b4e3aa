package cli

import (
	"strings"
	"testing"
)

func TestVisible(t *testing.T) {
	for in, want := range map[string]string{
		"a\tb\nc":               "a\tb\nc",
		"\x1b[31mred\x1b]0;x\a": "^[[31mred^[]0;x^G",
		"\u009b2J\x7f\r":        "^[[2J^?^M",
		"größe ✓ £":             "größe ✓ £",
	} {
		var b strings.Builder
		if n, err := (visible{&b}).Write([]byte(in)); n != len(in) || err != nil || b.String() != want {
			t.Errorf("%q: %q, %d, %v; want %q", in, b.String(), n, err, want)
		}
	}
}
