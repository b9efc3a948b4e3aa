package provision

import (
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/berth-node/berth/csi/csitest"
)

// TestAllowedTopologies wants volumes of a class to be made only where it allows them: where the driver says, and else
// by the node's labels.
func TestAllowedTopologies(t *testing.T) {
	topology, labels := map[string]string{"zone": "a"}, map[string]string{"zone": "b", "rack": "7"}
	for _, one := range []struct {
		terms []map[string][]string
		want  string
	}{
		{nil, ""},
		{[]map[string][]string{{"zone": {"b", "a"}}}, ""},
		{[]map[string][]string{{"zone": {"b"}}}, `zone is "a" here`},
		{[]map[string][]string{{"zone": {"b"}}, {"rack": {"7"}, "zone": {"a"}}}, ""},
		{[]map[string][]string{{"row": {"1"}}}, `row is "" here`},
	} {
		err := allowed(one.terms, topology, labels)
		if (err == nil) != (one.want == "") || err != nil && !strings.Contains(err.Error(), one.want) {
			t.Errorf("%v: %v", one.terms, err)
		}
	}
	h := newHouse(t, csitest.Options{Topology: topology})
	c := claim("a")
	c.Class.Topologies = []map[string][]string{{"zone": {"b"}}}
	h.want([]Claim{c}, nil)
	if s := h.volume("a"); s.Handle != "" || !strings.Contains(s.Error, "allowedTopologies") {
		t.Fatalf("got %+v", s)
	}
	c.Class.Topologies = []map[string][]string{{"zone": {"a"}}}
	h.want([]Claim{c}, nil)
	if s := h.volume("a"); !s.Ready {
		t.Errorf("got %+v", s)
	}
	// What is made stays where the class says otherwise later.
	c.Class.Topologies = []map[string][]string{{"zone": {"c"}}}
	h.want([]Claim{c}, nil)
	if s := h.volume("a"); !s.Ready || s.Error != "" {
		t.Errorf("got %+v", s)
	}
}

// TestRoom wants a driver that has no room to be asked how much it has, and one that has the volume already not to be.
func TestRoom(t *testing.T) {
	h := newHouse(t, csitest.Options{Capacity: 3 << 20})
	h.want([]Claim{c2("a", 2<<20), c2("b", 2<<20)}, nil)
	var failed []string
	for _, name := range []string{"a", "b"} {
		if s := h.volume(name); !s.Ready {
			failed = append(failed, s.Error)
		}
	}
	if d, err := h.drivers.Get("csitest.berth.node"); err != nil || !d.Controller(spec.ControllerServiceCapability_RPC_GET_CAPACITY) {
		t.Fatalf("the driver: %v, %v", d, err)
	}
	if len(failed) != 1 || !strings.Contains(failed[0], "it has 1048576 bytes left, and 2097152 are asked for") {
		t.Errorf("got %q", failed)
	}
	if n := len(slices.Collect(maps.Keys(h.driver.State().Volumes))); n != 1 {
		t.Errorf("there are %d volumes", n)
	}
}

// TestTooMuch has a claim ask for more than there is: it is known not to be made, so that a smaller claim is what is
// asked for next, and nothing is left of a claim that goes: the driver is not even asked for it again.
func TestTooMuch(t *testing.T) {
	var full atomic.Bool
	full.Store(true)
	h := newHouse(t, csitest.Options{Decide: func(rpc, _ string) *csitest.Fault {
		if rpc != "CreateVolume" || !full.Load() {
			return nil
		}
		return &csitest.Fault{When: csitest.Before, Code: codes.ResourceExhausted}
	}})
	h.want([]Claim{c2("a", 8<<20), c2("b", 8<<20)}, nil)
	for _, name := range []string{"a", "b"} {
		if s := h.volume(name); s.Ready || !strings.Contains(s.Error, "ResourceExhausted") {
			t.Fatalf("%s is %+v", name, s)
		}
	}
	full.Store(false)
	h.want([]Claim{c2("a", 2<<20)}, nil)
	if s := h.volume("a"); !s.Ready || s.Bytes != 2<<20 {
		t.Errorf("the smaller claim has %+v", s)
	}
	if l, made := h.m.List(), h.driver.State().Volumes; len(l) != 1 || len(made) != 1 {
		t.Errorf("there are %+v, and %+v is made", l, made)
	}
	if n := len(h.driver.Calls("CreateVolume")); n != 3 {
		t.Errorf("it was asked for volumes %d times", n)
	}
}

// TestNoRoomForContext wants a volume that its driver tells more of than there is room for not to be used, and to be
// deleted when its claim is: it is not forgotten that it was made.
func TestNoRoomForContext(t *testing.T) {
	h := newHouse(t, csitest.Options{ContextBytes: 2 << 20})
	h.want([]Claim{claim("a")}, nil)
	if s := h.volume("a"); s.Ready || !strings.Contains(s.Error, "its volume_context has") {
		t.Errorf("got %+v", s)
	}
	h.stop()
	h.open()
	h.want(nil, nil)
	h.pass(long)
	h.volumes()
	if list := h.m.List(); len(list) > 0 {
		t.Errorf("there is still %+v", list)
	}
}
