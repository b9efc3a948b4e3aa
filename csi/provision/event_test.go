package provision

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/berth-node/berth/csi/csitest"
)

// told is what was told since it was asked last, without what is told again.
func (h *house) told() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []string
	for _, e := range h.events {
		line := e.Claim.String() + " " + e.Reason
		if e.Made {
			line = e.Name + " " + e.Reason
		}
		if e.Warning {
			line += "!"
		}
		if !slices.Contains(out, line) {
			out = append(out, line)
		}
	}
	h.events = nil
	return out
}

func (h *house) tells(want ...string) {
	h.t.Helper()
	if got := h.told(); !slices.Equal(got, want) {
		h.t.Errorf("told %q, not %q", got, want)
	}
}

// TestEvents are those that a cluster has for claims and snapshots.
func TestEvents(t *testing.T) {
	h := newHouse(t, csitest.Options{SnapshotCalls: 1})
	waits := claim("a")
	waits.Waits = true
	h.want([]Claim{waits}, nil)
	h.settle()
	h.tells("default/a WaitForFirstConsumer")
	h.driver.Faults.Inject(csitest.Fault{RPC: "CreateVolume", Code: codes.InvalidArgument, Times: -1})
	h.want([]Claim{claim("a")}, nil)
	h.settle()
	h.mu.Lock()
	if n := len(h.events); n != 1 || !strings.Contains(h.events[0].Message, `class "fast"`) || h.events[0].UID != "uid-a" {
		t.Errorf("of an error that stays it is told once: %+v", h.events)
	}
	h.mu.Unlock()
	h.tells("default/a ProvisioningFailed!")
	h.driver.Faults.Instead()
	h.settle()
	h.tells("default/a ProvisioningSucceeded")
	big := c2("a", 2<<20)
	h.want([]Claim{big}, nil)
	h.tells("default/a VolumeResizeFailed!")
	big.Class.Expandable = true
	h.want([]Claim{big}, nil)
	h.tells("default/a VolumeResizeSuccessful", "default/a FileSystemResizeSuccessful")
	snap := Claim{Ref: Ref{"default", "s"}, UID: "uid-s", Class: Class{Name: "snap", Driver: "csitest.berth.node"}, Source: Source{Claim: "a"}}
	h.want([]Claim{big}, []Claim{snap})
	h.pass(2 * look)
	h.tells("default/s SnapshotCreated", "default/s SnapshotReady")
	h.driver.Faults.Inject(csitest.Fault{RPC: "DeleteVolume", Code: codes.FailedPrecondition, Times: -1},
		csitest.Fault{RPC: "DeleteSnapshot", Code: codes.FailedPrecondition, Times: -1})
	h.want(nil, nil)
	h.pass(long)
	got := h.told()
	slices.Sort(got)
	if want := []string{"pvc-uid-a VolumeFailedDelete!", "snapshot-uid-s SnapshotDeleteError!"}; !slices.Equal(got, want) {
		t.Errorf("told %q", got)
	}
	h.driver.Faults.Instead()
	h.drivers.Deregister(h.driver.Options().Name, h.driver.Options().Socket)
	h.want([]Claim{claim("b")}, nil)
	if got := h.told(); !slices.Contains(got, "default/b ExternalProvisioning") {
		t.Errorf("told %q", got)
	}
}
