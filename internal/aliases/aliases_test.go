package aliases

import (
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	long := "a: &a " + strings.Repeat("x", 1000) + "\nb: ["
	many := long + strings.Repeat("*a,", 1000) + "]\n"
	for name, tt := range map[string]struct {
		text string
		most int
		ok   bool
	}{
		"none": {"a: b", 1, true}, "few": {long + "*a]", 4000, true}, "too many": {many, 100_000, false},
		"many": {many, 2_000_000, true}, "inside of itself": {"a: &a [*a]", 1000, false}, "no YAML": {"&: *", 1, true},
	} {
		if err := Check([]byte(tt.text), tt.most); (err == nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzCheck(f *testing.F) {
	f.Add("a: &a b\nc: *a")
	f.Fuzz(func(_ *testing.T, text string) { _ = Check([]byte(text), 1000) })
}
