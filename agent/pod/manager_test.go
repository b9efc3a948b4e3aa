package pod

import (
	"testing"
	"time"
)

func TestPodRunsAndGoes(t *testing.T) {
	onNode(t, func(n *testNode) {
		p := newPod("web")
		n.apply(p)
		n.is("web", "Running main:0:running")
		if got, want := n.happened("web"), "Pulled Created Started"; got != want {
			t.Errorf("events %q, want %q", got, want)
		}
		n.remove(p)
		n.pass(time.Second)
		n.gone(p)
	})
}
