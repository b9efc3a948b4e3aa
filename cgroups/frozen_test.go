package cgroups

import (
	"context"
	"testing"
	"time"
)

// TestRemoveOfAFrozenTree removes groups that somebody has frozen, at the top and below.
func TestRemoveOfAFrozenTree(t *testing.T) {
	h, group := testGroup(t)
	sub := group + "/sub"
	mustCreate(t, h, sub, nil)
	process(t, h, group, "sleep 1000")
	process(t, h, sub, "sleep 1000")
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
