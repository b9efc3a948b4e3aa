package system

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// second joins another node, on directories of its own, to the cluster of the first one.
func (m *member) second(name string, args ...string) *member {
	m.t.Helper()
	o := &member{plane: m.plane, name: name}
	o.Node = newNode(m.t, append(args, "--node-name="+name)...)
	o.args = append(o.args, o.joining(m.t, m.plane)...)
	o.start()
	o.nodeReady()
	return o
}

// onNodes are the pods of the API on each node.
func (m *member) onNodes() (map[string][]string, error) {
	list, err := m.plane.Client.CoreV1().Pods("default").List(m.t.Context(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	out := map[string][]string{}
	for i := range list.Items {
		out[list.Items[i].Spec.NodeName] = append(out[list.Items[i].Spec.NodeName], list.Items[i].Name)
	}
	return out, nil
}

// tainted waits until a node has a taint, or has it no more.
func (m *member) tainted(key string, effect corev1.TaintEffect, want bool) {
	m.t.Helper()
	m.eventually(fmt.Sprintf("taint %s of node %s: %v", key, m.name, want), func() error {
		node, err := m.plane.Client.CoreV1().Nodes().Get(m.t.Context(), m.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, t := range node.Spec.Taints {
			if t.Key == key && t.Effect == effect {
				if want {
					return nil
				}
				return fmt.Errorf("it has taints %v", node.Spec.Taints)
			}
		}
		if want {
			return fmt.Errorf("it has taints %v", node.Spec.Taints)
		}
		return nil
	})
}

// TestTwoNodes: two agents of one machine are two nodes. Each runs its own pods and knows no others. One that is gone
// is tainted, and its pods are evicted that tolerate that for no time; it comes back with those that do, untouched.
func TestTwoNodes(t *testing.T) {
	t.Parallel()
	m := joined(t, "--node-name=first")
	other := m.second("second")
	tolerates := func(seconds *int64) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			for _, key := range []string{corev1.TaintNodeUnreachable, corev1.TaintNodeNotReady} {
				p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{
					Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: seconds,
				})
			}
		}
	}
	m.create(m.bound("here"))
	m.create(other.bound("there", tolerates(nil)))
	m.create(other.bound("evicted", tolerates(new(int64(0)))))
	for _, name := range []string{"here", "there", "evicted"} {
		m.apiReady(name)
	}
	for _, n := range []*member{m, other} {
		for _, p := range n.pods() {
			if p.Spec.NodeName != n.name {
				t.Errorf("node %s has pod %s of node %q", n.name, p.Name, p.Spec.NodeName)
			}
		}
	}
	if got := len(m.pods()) + len(other.pods()); got != 3 {
		t.Errorf("the nodes have %d pods, want 3", got)
	}
	before := other.waitReady("there")

	other.kill()
	other.tainted(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute, true)
	m.follow("evicted", "on its way out", func(p *corev1.Pod) bool { return p != nil && p.DeletionTimestamp != nil })
	m.follow("there", "not ready", func(p *corev1.Pod) bool { return p != nil && !isReady(p) })
	if p := m.apiReady("here"); p.DeletionTimestamp != nil {
		t.Error("a pod of the node that is there is deleted")
	}

	other.start()
	other.nodeReady()
	m.apiGone("evicted")
	other.waitGone("evicted")
	other.tainted(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute, false)
	m.apiReady("there")
	if p := other.waitReady("there"); p.UID != before.UID ||
		p.Status.ContainerStatuses[0].ContainerID != before.Status.ContainerStatuses[0].ContainerID {
		t.Errorf("the pod was started again: %+v", p.Status.ContainerStatuses)
	}
	got, err := m.onNodes()
	if err != nil || len(got["first"]) != 1 || len(got["second"]) != 1 {
		t.Errorf("pods of the nodes: %v, %v", got, err)
	}
	m.delete("here", new(int64(0)))
	m.delete("there", new(int64(0)))
	m.requireNoPods()
	other.requireNoPods()
}
