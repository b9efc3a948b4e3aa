package cgroups

import (
	"context"
	"testing"
	"time"

	"github.com/berth-node/berth/cgroups/cgroupstest"
)

// TestRemoveOfAFrozenTree removes groups that somebody has frozen, at the top and below.
func TestRemoveOfAFrozenTree(t *testing.T) {
	h, path := cgroupstest.Group(t, Open)
	sub := path + "/sub"
	cgroupstest.Create(t, h, sub, nil)
	if h.Mode() != Unified { // which has no processes beside groups
		cgroupstest.Process(t, h, path, "sleep 1000")
	}
	cgroupstest.Process(t, h, sub, "sleep 1000")
	group{h, path}.freeze()
	group{h, sub}.freeze()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if err := h.Remove(ctx, path); err != nil {
		t.Fatal(err)
	}
	if h.Exists(path) {
		t.Error("it is still there")
	}
}
