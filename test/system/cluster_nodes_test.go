package system

import (
	"fmt"
	"slices"
	"syscall"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
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

// spread is a deployment of two pods, one on each node that is there, which stay on one that is lost for a second.
func spread() *appsv1.Deployment {
	honor, labels := corev1.NodeInclusionPolicyHonor, map[string]string{"app": "web"}
	pod := (&member{}).bound("web", func(p *corev1.Pod) {
		p.Spec.NodeName = ""
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule, NodeTaintsPolicy: &honor,
			LabelSelector: &metav1.LabelSelector{MatchLabels: labels},
		}}
		for _, key := range []string{corev1.TaintNodeUnreachable, corev1.TaintNodeNotReady} {
			p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{
				Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(1)),
			})
		}
	})
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod.Spec},
		},
	}
}

// readyOn waits until a deployment has two pods that are ready on some nodes, and returns the names of all on each.
func (m *member) readyOn(names ...string) map[string][]string {
	m.t.Helper()
	var on map[string][]string
	m.eventually(fmt.Sprintf("a pod on each of %v", names), func() error {
		d, err := m.plane.Client.AppsV1().Deployments("default").Get(m.t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		all, err := m.plane.Client.CoreV1().Pods("default").List(m.t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
		if err != nil {
			return err
		}
		on = map[string][]string{}
		var ready []string
		for i := range all.Items {
			p := &all.Items[i]
			on[p.Spec.NodeName] = append(on[p.Spec.NodeName], p.Name)
			if p.DeletionTimestamp == nil && isReady(p) {
				ready = append(ready, p.Spec.NodeName)
			}
		}
		slices.Sort(ready)
		if !slices.Equal(ready, names) || d.Status.AvailableReplicas != 2 {
			return fmt.Errorf("ready are those on %v, of %+v", ready, d.Status)
		}
		return nil
	})
	return on
}

// TestNodeComesBack stops a node's agent as if the machine hung, while the containers go on. The pod that is there is
// replaced elsewhere; the agent, when it goes on, ends it, and the node is as any other again.
func TestNodeComesBack(t *testing.T) {
	t.Parallel()
	// The node that stays renews its lease each 10 seconds, and on a busy machine later.
	m := joinedTo(t, []string{"--node-monitor-grace-period=45s"}, "--node-name=first")
	other := m.second("second")
	m.nodeReady() // else the scheduler has nothing to spread over
	if _, err := m.plane.Client.AppsV1().Deployments("default").Create(t.Context(), spread(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	left := m.readyOn("first", "second")["second"][0]
	container := other.waitReady(left).Status.ContainerStatuses[0].ContainerID

	if err := other.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	other.tainted(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute, true)
	on := m.readyOn("first", "first")
	if len(on["first"]) != 2 || !slices.Equal(on["second"], []string{left}) {
		t.Errorf("pods of the nodes: %v", on)
	}
	m.follow(left, "on its way out", func(p *corev1.Pod) bool {
		return p != nil && p.DeletionTimestamp != nil && p.Status.ContainerStatuses[0].ContainerID == container
	})
	if err := other.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	m.apiGone(left)
	other.waitGone(left)
	other.tainted(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute, false)
	other.requireNoPods()

	for _, name := range on["first"] {
		m.delete(name, new(int64(0)))
	}
	m.readyOn("first", "second")
	if err := m.plane.Client.AppsV1().Deployments("default").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	m.requireNoPods()
	other.requireNoPods()
}
