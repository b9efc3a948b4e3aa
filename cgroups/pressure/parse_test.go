package pressure

import (
	"math"
	"slices"
	"testing"
	"time"
)

func TestTriggerText(t *testing.T) {
	for want, trigger := range map[string]Trigger{
		"some 150000 1000000\x00": {Stall: 150 * time.Millisecond, Window: time.Second},
		"full 1 10000000\x00":     {Full: true, Stall: time.Microsecond, Window: 10 * time.Second},
	} {
		if got := trigger.text(); got != want || trigger.check() != nil {
			t.Errorf("%+v: %q, %v", trigger, got, trigger.check())
		}
	}
}

func TestTriggerCoarser(t *testing.T) {
	for window, want := range map[time.Duration]time.Duration{
		500 * time.Millisecond: 2 * time.Second, 2 * time.Second: 2 * time.Second, 2001 * time.Millisecond: 4 * time.Second,
		10 * time.Second: 10 * time.Second,
	} {
		if got := (Trigger{Window: window}).coarser().Window; got != want {
			t.Errorf("%v: %v, want %v", window, got, want)
		}
	}
}

func TestAhead(t *testing.T) {
	marks := []int64{10 * mib, 20 * mib, 30 * mib}
	for usage, want := range map[int64][]int64{
		0:             marks,
		8 * mib:       marks,
		10*mib - 1:    marks[1:], // it is counted in batches
		20 * mib:      marks[2:],
		25 * mib:      marks[2:],
		30 * mib:      nil,
		math.MaxInt32: nil,
	} {
		if got := ahead(marks, usage); !slices.Equal(got, want) {
			t.Errorf("%d: got %v, want %v", usage, got, want)
		}
	}
}

func TestPassed(t *testing.T) {
	for by, want := range map[int64]bool{-1: false, 0: false, 9: false, 10: true, 100: true} {
		if got := passed([]int64{50, 10, -5, 0}, by); got != want {
			t.Errorf("%d: %v", by, got)
		}
	}
}

func FuzzParseBytes(f *testing.F) {
	f.Add("max\n")
	f.Add("4096\n")
	f.Add("-1")
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := parseBytes(text); err == nil && n < 0 {
			t.Errorf("%q is %d", text, n)
		}
	})
}
