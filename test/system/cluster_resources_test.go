package system

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/device/devicetest"
)

// TestCountedElsewhere: what people write on the Node is a scheduler's to count. Pods run with it, the agent leaves it
// there, also over its own end, and a plugin that offers it later gives none of it to pods that run. What a plugin has
// offered is the node's.
func TestCountedElsewhere(t *testing.T) {
	t.Parallel()
	const name = "example.com/fakecpu"
	m := joined(t)
	m.nodeReady()
	asks := func(p *corev1.Pod) {
		p.Spec.AutomountServiceAccountToken = new(false)
		two := corev1.ResourceList{name: resource.MustParse("2")}
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: two, Limits: two}
	}
	has := func(capacity, allocatable string) {
		t.Helper()
		m.eventually(fmt.Sprintf("%s of %s on the Node, %s for pods", capacity, name, allocatable), func() error {
			n, err := m.plane.Client.CoreV1().Nodes().Get(t.Context(), m.name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			c, a := n.Status.Capacity[name], n.Status.Allocatable[name]
			if c.String() != capacity || a.String() != allocatable {
				return fmt.Errorf("it has %s, %s can be asked for", &c, &a)
			}
			return nil
		})
	}
	// With a grace of 0 the server would forget the pod before the node has what it had, and count the next beside it.
	gone := func(name string) {
		t.Helper()
		m.delete(name, new(int64(1)))
		m.apiGone(name)
		m.requireNoPods()
	}
	_, err := m.plane.Client.CoreV1().Nodes().Patch(t.Context(), m.name, types.StrategicMergePatchType,
		[]byte(`{"status":{"capacity":{"`+name+`":"5"}}}`), metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
	has("5", "5")
	m.create(m.bound("counted", asks))
	before := m.apiReady("counted")
	m.kill()
	m.start()
	m.nodeReady()
	has("5", "5")

	p := m.plugin(name)
	p.Set(devicetest.Healthy("a", "b")...)
	stop := m.runPlugin(p)
	has("2", "2")
	if is := m.apiReady("counted").Status.ContainerStatuses[0]; is.ContainerID != before.Status.ContainerStatuses[0].ContainerID {
		t.Errorf("the pod was started again: %+v", is)
	}
	if got := p.Allocated(); len(got) > 0 {
		t.Errorf("the pod that runs was given %v", got)
	}
	gone("counted")
	m.create(m.bound("given", asks))
	m.apiReady("given")
	if got := p.Allocated(); len(got) != 1 || len(got[0]) != 2 {
		t.Errorf("the plugin was asked for %v", got)
	}
	gone("given")
	stop()
	has("2", "0")
	m.create(m.bound("refused", asks))
	m.follow("refused", "refused", func(p *corev1.Pod) bool {
		return p != nil && p.Status.Phase == corev1.PodFailed && p.Status.Reason == "OutOf"+name
	})
	m.delete("refused", new(int64(0)))
	m.apiGone("refused")
	m.requireNoPods()
}
