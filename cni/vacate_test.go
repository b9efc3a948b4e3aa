package cni

import (
	"slices"
	"testing"

	"github.com/berth-node/berth/cni/netnstest"
)

func TestVacate(t *testing.T) {
	needRoot(t)
	n := open(t, churnConfig(t.TempDir()))
	var pods []Pod
	for _, id := range []string{"a", "b", "c"} {
		ns, err := n.NewNamespace(id)
		must(t, err)
		p := Pod{ID: id, NetNS: ns}
		_, err = n.Setup(t.Context(), p)
		must(t, err)
		pods = append(pods, p)
	}
	inA, inB, inC, here := netnstest.Start(t, pods[0].NetNS), netnstest.Start(t, pods[1].NetNS),
		netnstest.Start(t, pods[2].NetNS), netnstest.Start(t, "/proc/self/ns/net")

	for _, id := range []string{"a", "a", "unknown"} {
		must(t, n.Vacate(t.Context(), id))
	}
	if !inA.Ended() || inB.Ended() {
		t.Error("the processes of a, and those alone, are to end")
	}

	// What Collect finds is emptied before anything of it is given back, and what is live is left alone.
	n = reopen(t, n.conf)
	must(t, n.Collect(t.Context(), []string{"c"}))
	if !inB.Ended() || inC.Ended() {
		t.Error("the processes of b, and those alone, are to end")
	}
	must(t, n.Teardown(t.Context(), pods[2]))
	must(t, n.RemoveNamespace("c"))

	// A pin that is the node's own namespace, whatever brought it about, must not cost the node its processes.
	_, err := n.AdoptNamespace("home", "/proc/self/ns/net")
	must(t, err)
	n = reopen(t, n.conf)
	if err := n.Collect(t.Context(), nil); err == nil {
		t.Error("the node's own namespace was vacated")
	}
	if ids, err := n.pins.list(); err != nil || !slices.Contains(ids, "home") {
		t.Errorf("what was not vacated is gone: %q, %v", ids, err)
	}
	if here.Ended() {
		t.Error("a process of the node was killed")
	}
	must(t, n.RemoveNamespace("home"))
}
