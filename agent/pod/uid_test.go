package pod

import (
	"testing"
	"time"

	"github.com/berth-node/berth/agent/pod/podtest"
)

// TestOneUID: a manifest that was copied with its uid, or an API server that gives it twice, has two pods be one to all
// that goes by it: directory, cgroup, volumes and containers. The second one waits, or fails, and does nothing to the
// first.
func TestOneUID(t *testing.T) {
	onNode(t, func(n *testNode) {
		first, second, remote := podtest.New("first"), podtest.New("second"), podtest.New("remote")
		second.UID, remote.UID = first.UID, first.UID
		remote.Spec.NodeName = "node"
		fromAPI(remote)
		n.apply(first)
		n.is("first", "Running main:0:running")
		n.apply(second, remote)
		n.pass(time.Minute)
		n.is("first", "Running main:0:running")
		n.is("second", "Pending(UIDInUse) main:0:ContainerCreating")
		n.is("remote", "Failed(UIDInUse) main:0:ContainerCreating")
		if got := n.rt.running(); len(got) != 1 {
			t.Errorf("these run: %v", got)
		}
		// The next agent finds a pod of that uid, which is the first one's.
		delete(n.want, keyOf(remote))
		n.restart()
		n.pass(time.Minute)
		n.is("first", "Running main:0:running")
		n.is("second", "Pending(UIDInUse) main:0:ContainerCreating")
		n.remove(first)
		n.pass(time.Minute)
		n.is("second", "Running main:0:running")
		n.remove(second)
		n.pass(time.Minute)
		n.gone(second)
	})
}

// TestRenamed: a pod of another name that has the uid of one that was there before it begins when that has ended.
func TestRenamed(t *testing.T) {
	onNode(t, func(n *testNode) {
		before, after := podtest.New("before"), podtest.New("after")
		after.UID = before.UID
		n.apply(before)
		n.is("before", "Running main:0:running")
		n.stop()
		delete(n.want, keyOf(before))
		n.want[keyOf(after)] = after
		n.start()
		n.pass(time.Minute)
		n.is("after", "Running main:0:running")
		for id, s := range n.rt.sandboxes {
			if s.Metadata.Name != "after" {
				t.Errorf("sandbox %s is of pod %s", id, s.Metadata.Name)
			}
		}
	})
}
