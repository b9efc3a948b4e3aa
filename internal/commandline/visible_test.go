package commandline

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestVisible(t *testing.T) {
	for in, want := range map[string]string{
		"a\tb\nc":               "a\tb\nc",
		"\x1b[31mred\x1b]0;x\a": "^[[31mred^[]0;x^G",
		"\u009b2J\x7f\r":        "^[[2J^?^M",
		"a\x9b2Jb\xff":          `a\x9b2Jb\xff`,
		"a\u202eb\u2028\u200b":  `a\u202eb\u2028\u200b`,
		"a\u00adb\u180e\ufff9":  `a\u00adb\u180e\ufff9`,
		"a\U000e0041b":          `a\ue0041b`,
		"größe ✓ £":             "größe ✓ £",
	} {
		var b strings.Builder
		if n, err := (visible{&b}).Write([]byte(in)); n != len(in) || err != nil || b.String() != want {
			t.Errorf("%q: %q, %d, %v; want %q", in, b.String(), n, err, want)
		}
	}
}

// TestVisibleInPieces writes byte by byte what is escaped as a whole.
func TestVisibleInPieces(t *testing.T) {
	var b strings.Builder
	v := Visible(&b)
	for _, c := range []byte("\x1b\u009b2J ✓ \xc2") {
		if _, err := v.Write([]byte{c}); err != nil {
			t.Fatal(err)
		}
	}
	if s := b.String(); strings.ContainsAny(s, "\x1b\u009b") {
		t.Errorf("%q", s)
	}
}

func TestEscapedJSON(t *testing.T) {
	in := "a\u009b\x7f\u202e\x1b\u00ad\U000e0041 größe"
	plain, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	safe := EscapedJSON(plain)
	var out string
	if err := json.Unmarshal(safe, &out); err != nil || out != in ||
		strings.ContainsAny(string(safe), "\u009b\x7f\u202e\x1b\u00ad\U000e0041") {
		t.Errorf("%q from %q, %v", out, safe, err)
	}
}
