package kube

import "testing"

func TestSettingMatches(t *testing.T) {
	for _, tt := range []struct {
		file, want, found string
		matches           bool
	}{
		{"memory.max", "100001", "98304", true}, // whole pages
		{"memory.max", "100001", "90000", false},
		{"memory.limit_in_bytes", "max", "9223372036854771712", true},
		{"memory.oom.group", "1", "1", true},
		{"memory.oom.group", "1", "0", false}, // no bytes
		{"io.weight", "250", "default 250", true},
		{"pids.max", "5000", "4096", false},
	} {
		if got := (Setting{File: tt.file, Want: tt.want}).Matches(tt.found); got != tt.matches {
			t.Errorf("%s: %q for %q: %v, want %v", tt.file, tt.found, tt.want, got, tt.matches)
		}
	}
}
