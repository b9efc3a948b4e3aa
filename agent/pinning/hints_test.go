package pinning

import (
	"testing"

	"github.com/berth-node/berth/agent/topology/topologytest"
)

// TestMerge has the cases that the documentation of the topology manager tells of, on two nodes: 1 is node 0, 2 is node
// 1 and 3 both.
func TestMerge(t *testing.T) {
	yes := func(n Nodes) Hint { return Hint{n, true} }
	no := func(n Nodes) Hint { return Hint{n, false} }
	machine := topologytest.Machine(t, "two-sockets")
	type outcome struct {
		hint  Hint
		admit bool
	}
	for _, tc := range []struct {
		name                       string
		wishes                     []wish
		effort, restricted, single outcome
	}{
		{
			"nobody asks for anything", nil,
			outcome{yes(3), true},
			outcome{yes(3), true},
			outcome{yes(0), true},
		},
		{
			"nobody minds",
			[]wish{nil, nil},
			outcome{yes(3), true},
			outcome{yes(3), true},
			outcome{yes(0), true},
		},
		{
			"one resource, one node",
			[]wish{{yes(1), no(3)}},
			outcome{yes(1), true},
			outcome{yes(1), true},
			outcome{yes(1), true},
		},
		{
			"one resource, either node",
			[]wish{{yes(1), yes(2), no(3)}},
			outcome{yes(1), true},
			outcome{yes(1), true},
			outcome{yes(1), true},
		},
		{
			"both resources on one node",
			[]wish{{yes(1), yes(2), no(3)}, {yes(2), no(3)}},
			outcome{yes(2), true},
			outcome{yes(2), true},
			outcome{yes(2), true},
		},
		{
			"the resources are on different nodes",
			[]wish{{yes(1), no(3)}, {yes(2), no(3)}},
			outcome{no(1), true},
			outcome{no(1), false},
			outcome{no(3), false},
		},
		{
			"one resource cannot be had",
			[]wish{{yes(1)}, {}},
			outcome{no(1), true},
			outcome{no(1), false},
			outcome{no(1), false},
		},
		{
			"one needs both nodes, rightly",
			[]wish{{yes(3)}},
			outcome{yes(3), true},
			outcome{yes(3), true},
			outcome{no(3), false},
		},
		{
			"one needs both nodes, the other does not mind",
			[]wish{{yes(3)}, nil},
			outcome{yes(3), true},
			outcome{yes(3), true},
			outcome{no(3), false},
		},
		{
			"one is only had from both, and would fit on one",
			[]wish{{no(3)}},
			outcome{no(3), true},
			outcome{no(3), false},
			outcome{no(3), false},
		},
		{
			"one needs both, the other fits on one",
			[]wish{{yes(3)}, {yes(1), yes(2), no(3)}},
			outcome{yes(1), true},
			outcome{yes(1), true},
			outcome{no(1), false},
		},
	} {
		for policy, want := range map[AlignmentPolicy]outcome{
			AlignBestEffort: tc.effort, AlignRestricted: tc.restricted, AlignSingleNode: tc.single, AlignNone: {Hint{}, true},
		} {
			a := aligner{policy: policy, machine: machine, all: 3}
			h, ok := a.merge(tc.wishes)
			if ok != want.admit || (want.admit || policy != AlignSingleNode) && h != want.hint {
				t.Errorf("%s, %s: got %v %v, want %v %v", tc.name, policy, h, ok, want.hint, want.admit)
			}
		}
	}
}

// TestMergeClosest: nodes 0 and 2 are two steps from each other in the ring, 0 and 1 are neighbours.
func TestMergeClosest(t *testing.T) {
	a := aligner{policy: AlignBestEffort, machine: topologytest.Machine(t, "four-nodes"), all: 15}
	wishes := []wish{{{NodesOf(0, 2), true}, {NodesOf(1, 2), true}}}
	if h, _ := a.merge(wishes); h.Nodes != NodesOf(0, 2) {
		t.Errorf("without distances got %v, want the lowest set", h.Nodes.list())
	}
	a.closest = true
	if h, _ := a.merge(wishes); h.Nodes != NodesOf(1, 2) {
		t.Errorf("got %v, want neighbours", h.Nodes.list())
	}
}

// TestMergeUnpreferred: what nobody prefers should still be no larger than what is needed.
func TestMergeUnpreferred(t *testing.T) {
	a := aligner{policy: AlignBestEffort, machine: topologytest.Machine(t, "four-nodes"), all: 15}
	h, _ := a.merge([]wish{{{NodesOf(0, 1), false}, {NodesOf(0, 1, 2), false}, {NodesOf(0, 1, 2, 3), false}}, nil})
	if h.Nodes != NodesOf(0, 1) {
		t.Errorf("got %v", h.Nodes.list())
	}
}
