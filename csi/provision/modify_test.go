package provision

import (
	"maps"
	"slices"
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/berth-node/berth/csi/csitest"
)

func withAttributes(class string, parameters map[string]string) Claim {
	c := claim("a")
	c.Attributes = Attributes{Class: class, Driver: "csitest.berth.node", Parameters: parameters}
	return c
}

func (h *house) mutable(want map[string]string) {
	h.t.Helper()
	if got := h.driver.State().Volumes["v-pvc-uid-a"].Mutable; !maps.Equal(got, want) {
		h.t.Errorf("the volume has %v, and not %v", got, want)
	}
}

// TestModify has a volume be made with attributes, and be changed by others: by another class, by a class that has
// changed, and not by none.
func TestModify(t *testing.T) {
	h := newHouse(t, csitest.Options{})
	h.want([]Claim{withAttributes("slow", map[string]string{"iops": "1"})}, nil)
	h.mutable(map[string]string{"iops": "1"})
	if s := h.volume("a"); s.Attributes != "slow" {
		t.Errorf("got %+v", s)
	}
	h.told()
	h.want([]Claim{withAttributes("fast", map[string]string{"iops": "9"})}, nil)
	h.mutable(map[string]string{"iops": "9"})
	h.tells("default/a VolumeModify", "default/a VolumeModifySuccessful")
	h.want([]Claim{withAttributes("fast", map[string]string{"iops": "10"})}, nil)
	h.mutable(map[string]string{"iops": "10"})
	n := len(h.driver.Calls())
	h.want([]Claim{claim("a")}, nil)
	h.stop()
	h.open()
	h.want([]Claim{withAttributes("fast", map[string]string{"iops": "10"})}, nil)
	if calls := h.driver.Calls()[n:]; slices.ContainsFunc(calls, func(c csitest.Call) bool { return c.RPC == "ControllerModifyVolume" }) {
		t.Errorf("a volume that is as it is wanted is changed: %v", calls)
	}
	if s := h.volume("a"); s.Attributes != "fast" || s.Error != "" {
		t.Errorf("got %+v", s)
	}
}

// TestModifyRefused tells of what cannot be, and has the volume stay as it is, and be expanded all the same.
func TestModifyRefused(t *testing.T) {
	h := newHouse(t, csitest.Options{})
	h.want([]Claim{claim("a")}, nil)
	h.told()
	gone, other := withAttributes("gone", nil), withAttributes("other", map[string]string{"x": "y"})
	gone.Attributes.Driver, other.Attributes.Driver = "", "other.example.com"
	for _, one := range []struct {
		c    Claim
		want string
	}{{gone, "there is none"}, {other, "is for CSI driver other.example.com"}} {
		h.want([]Claim{one.c}, nil)
		if s := h.volume("a"); !s.Ready || !strings.Contains(s.Error, one.want) {
			t.Errorf("got %+v", s)
		}
	}
	h.tells("default/a VolumeModifyFailed!")
	h.driver.Faults.Inject(csitest.Fault{RPC: "ControllerModifyVolume", Code: codes.InvalidArgument, Times: -1})
	bad := withAttributes("bad", map[string]string{"iops": "1"})
	bad.Bytes, bad.Class.Expandable = 2<<20, true
	h.want([]Claim{bad}, nil)
	if s := h.volume("a"); s.Bytes != 2<<20 || !strings.Contains(s.Error, "InvalidArgument") {
		t.Errorf("got %+v", s)
	}
	h.driver.Faults.Instead()
	good := bad
	good.Attributes = Attributes{"good", "csitest.berth.node", map[string]string{"tier": "1"}}
	h.want([]Claim{good}, nil)
	h.mutable(map[string]string{"tier": "1"}) // what is final is not finished
}

// TestModifyUncertain has a change whose end is not known be finished before the next one, also by the next agent.
func TestModifyUncertain(t *testing.T) {
	h := newHouse(t, csitest.Options{})
	h.want([]Claim{claim("a")}, nil)
	h.driver.Faults.Inject(csitest.Fault{RPC: "ControllerModifyVolume", When: csitest.Within, Code: codes.Unavailable})
	h.want([]Claim{withAttributes("one", map[string]string{"iops": "1"})}, nil)
	h.mutable(nil)
	h.stop()
	h.open()
	h.want([]Claim{withAttributes("two", map[string]string{"tier": "2"})}, nil)
	h.mutable(map[string]string{"iops": "1", "tier": "2"})
	if s := h.volume("a"); s.Attributes != "two" {
		t.Errorf("got %+v", s)
	}
}

// TestModifyUnable wants nothing be made with attributes by a driver that has none.
func TestModifyUnable(t *testing.T) {
	h := newHouse(t, csitest.Options{Controller: []spec.ControllerServiceCapability_RPC_Type{spec.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME}})
	h.want([]Claim{withAttributes("fast", map[string]string{"iops": "9"})}, nil)
	if s := h.volume("a"); !strings.Contains(s.Error, "changes no volumes") {
		t.Errorf("got %+v", s)
	}
	h.volumes()
}
