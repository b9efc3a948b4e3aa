package cgroups

import "testing"

func TestWeight(t *testing.T) {
	for shares, want := range map[uint64]uint64{0: 0, 2: 1, 102: 10, 512: 50, 1024: 100, 2048: 200, 262144: 10_000} {
		if got := Weight(shares); got != want {
			t.Errorf("weight of %d shares is %d, want %d", shares, got, want)
		}
	}
}
