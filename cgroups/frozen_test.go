package cgroups

import (
	"context"
	"testing"
	"time"

	"github.com/berth-node/berth/cgroups/cgroupstest"
)

// TestRemoveOfAFrozenTree removes groups that somebody has frozen, at the top and below.
func TestRemoveOfAFrozenTree(t *testing.T) {
	h, group := cgroupstest.Group(t, Open)
	sub := group + "/sub"
	cgroupstest.Create(t, h, sub, nil)
	cgroupstest.Process(t, h, group, "sleep 1000")
	cgroupstest.Process(t, h, sub, "sleep 1000")
	h.freeze(group)
	h.freeze(sub)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := h.Remove(ctx, group); err != nil {
		t.Fatal(err)
	}
	if h.Exists(group) {
		t.Error("it is still there")
	}
}
