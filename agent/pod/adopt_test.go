package pod

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/pod/podtest"
)

func onPort(port int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: port, Protocol: corev1.ProtocolTCP}}
	}
}

// A manifest that has changed while no agent ran is as one that changes while one runs: the old pod goes on until the
// node takes the new one, which starts after it has ended.
func TestChangedWhileAway(t *testing.T) {
	onNode(t, func(n *testNode) {
		old, other := podtest.New("web"), podtest.New("other", podtest.Containers("x"), onPort(8080))
		n.apply(old, other)
		n.stop()
		changed := podtest.New("web", podtest.WithUID("changed"), onPort(8080))
		n.want[types.NamespacedName{Namespace: "default", Name: "web"}] = changed
		n.start()
		n.pass(time.Minute)
		n.is("web", "Running main:0:running")
		if got := n.pod("web").UID; got != old.UID || n.message("web", "NodePorts") == "" {
			t.Errorf("pod %s, events %s", got, n.happened("web"))
		}
		// It is a pod like others: what exits is started again.
		n.rt.exit("main-0", 1)
		n.pass(time.Minute)
		n.is("web", "Running main:1:running<Error(1)")
		n.restart()
		n.is("web", "Running main:1:running<Error(1)")
		n.remove(other)
		n.pass(time.Minute)
		if got := n.pod("web").UID; got != changed.UID {
			t.Errorf("pod %s runs, though its port is free", got)
		}
		n.is("web", "Running main:0:running")
		n.gone(old, other)
		n.stop()
		last := podtest.New("web", podtest.WithUID("last"))
		n.want[types.NamespacedName{Namespace: "default", Name: "web"}] = last
		n.start()
		n.pass(time.Minute)
		n.is("web", "Running main:0:running")
		if got := n.pod("web").UID; got != last.UID {
			t.Errorf("pod %s runs", got)
		}
		n.gone(changed)
	})
}
