package main

import (
	"testing"
	"time"
)

func TestRelease(t *testing.T) {
	for version, want := range map[string]string{
		"v1.2.3": "1.2.3", "1.2": "1.2", "v1.2.3-4-gabcdef0": "1.2.3+4.abcdef0", "v1.2.3-dirty": "1.2.3.dirty",
		"20f119b6": "0.0.0+20260102030405.20f119b6", "20f119b6-dirty": "0.0.0+20260102030405.20f119b6.dirty", "": "0.0.0+20260102030405",
		"v1/../x y": "0.0.0+20260102030405.1.x.y",
	} {
		j := job{version: version, time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
		if got := j.release(); got != want {
			t.Errorf("%q is %q, not %q", version, got, want)
		}
	}
}
