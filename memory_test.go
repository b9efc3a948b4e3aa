package main

import (
	"math"
	"testing"
)

func TestPlanMemory(t *testing.T) {
	const mb = 1 << 20
	for _, c := range []struct {
		limit int64
		pods  int
		short bool
		heap  int64 // at least
	}{
		{math.MaxInt64, 1000, false, 0},
		{38 * mb, 40, true, leastHeap},
		{fixedMemory + 40*memoryPerPod, 40, false, leastHeap},
		{512 * mb, 40, false, 400 * mb},
		{0, 0, true, leastHeap},
	} {
		p := planMemory(c.limit, c.pods)
		if p.short != c.short || p.heap < c.heap || c.limit == math.MaxInt64 && p.heap != 0 {
			t.Errorf("limit %d with %d pods: %+v", c.limit, c.pods, p)
		}
	}
}
