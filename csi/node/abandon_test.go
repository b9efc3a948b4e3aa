package node

import (
	"errors"
	"testing"

	"github.com/berth-node/berth/csi"
)

// TestAbandon wants a pod to go whose driver is gone for good, once somebody has said so, and nothing of it to be left;
// pods that stay keep the volume.
func TestAbandon(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	h.publish(h.request("a", "v"))
	h.publish(h.request("b", "v"))
	if h.Abandon(driverName, "v") == nil || h.Abandon(driverName, "other") == nil {
		t.Error("a volume that nobody waits for was abandoned")
	}
	h.drivers.Deregister(driverName, h.driver.socket)
	h.driver.said()
	for _, pod := range []string{"a", "b"} {
		if err := h.Release(t.Context(), h.podDir(pod)); !errors.Is(err, csi.ErrNotRegistered) {
			t.Fatalf("got %v", err)
		}
		must(t, h.Abandon(driverName, "v"))
		must(t, h.Release(t.Context(), h.podDir(pod)))
		if pod == "a" {
			if got := h.Users(driverName, "v"); len(got) != 1 || got[0].UID != "b" || h.Abandon(driverName, "v") == nil {
				t.Errorf("users are %v", got)
			}
			if found, err := h.Check(t.Context()); err != nil || len(found) > 0 {
				t.Errorf("found %v, %v", found, err)
			}
		}
	}
	h.called("")
	h.nothing()
}
