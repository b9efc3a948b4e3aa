package control

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// place makes a node of so many processors that is ready, as a kubelet would.
func place(t *testing.T, p *plane, name, cpu string, taints ...corev1.Taint) {
	t.Helper()
	n, err := p.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}, Spec: corev1.NodeSpec{Taints: taints},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("4Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	n.Status.Capacity = n.Status.Allocatable
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if n, err = p.client.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.Spec.Taints = taints // each node begins with one that says that it is not ready
	if _, err := p.client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// wants makes a pod that asks for so much of a processor.
func wants(t *testing.T, p *plane, name, cpu string, change func(*corev1.Pod)) {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
		}}}},
	}
	if change != nil {
		change(pod)
	}
	until(t, "pod "+name+" is made", func() error { // its service account may not be there yet
		_, err := p.client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
		return err
	})
}

// isOn waits for a pod to be on one of the nodes.
func isOn(t *testing.T, p *plane, name string, nodes ...string) {
	t.Helper()
	until(t, fmt.Sprintf("pod %s is on %v", name, nodes), func() error {
		pod, err := p.client.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if slices.Contains(nodes, pod.Spec.NodeName) {
			return nil
		}
		return fmt.Errorf("it is on %q, conditions %v", pod.Spec.NodeName, pod.Status.Conditions)
	})
}

// saysWhy waits for a pod to say that it has no node, in these words.
func saysWhy(t *testing.T, p *plane, name, words string) {
	t.Helper()
	until(t, "pod "+name+" says why it has no node", func() error {
		pod, err := p.client.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable && strings.Contains(c.Message, words) {
				return nil
			}
		}
		return fmt.Errorf("conditions %v", pod.Status.Conditions)
	})
}

func hasEvent(t *testing.T, p *plane, pod, reason string) {
	t.Helper()
	until(t, "event "+reason+" of pod "+pod, func() error {
		events, err := p.client.EventsV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=" + reason})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Regarding.Name == pod && e.ReportingController == "default-scheduler" {
				return nil
			}
		}
		return errors.New("there is none")
	})
}

// TestScheduler has pods come to nodes where they fit, say why they do not, and come there when something changes; a
// scheduler that was killed goes on where it was.
func TestScheduler(t *testing.T) {
	t.Parallel()
	p := startAt(t, t.TempDir(), "0", "--controllers=serviceaccount-controller")
	place(t, p, "small", "1")
	place(t, p, "tainted", "8", corev1.Taint{Key: "mine", Effect: corev1.TaintEffectNoSchedule})
	wants(t, p, "fits", "500m", nil)
	isOn(t, p, "fits", "small")
	hasEvent(t, p, "fits", "Scheduled")
	wants(t, p, "large", "2", nil)
	saysWhy(t, p, "large", "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s).")
	hasEvent(t, p, "large", "FailedScheduling")
	out, err := exec.CommandContext(t.Context(), binary, "why", "large", "--data-dir", p.dir).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "Insufficient cpu") || !strings.Contains(string(out), "TaintToleration") {
		t.Errorf("why says %s (%v)", out, err)
	}
	wants(t, p, "gated", "100m", func(pod *corev1.Pod) {
		pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.org/g"}}
	})
	wants(t, p, "other", "100m", func(pod *corev1.Pod) { pod.Spec.SchedulerName = "another" })
	place(t, p, "large", "4")
	isOn(t, p, "large", "large")

	p.kill()
	q := startAt(t, p.dir, "0", "--controllers=serviceaccount-controller")
	wants(t, q, "after", "1", nil)
	isOn(t, q, "after", "large")
	ungate := func(ctx context.Context) error {
		pod, err := q.client.CoreV1().Pods("default").Get(ctx, "gated", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if pod.Spec.NodeName != "" {
			t.Fatal("a gated pod has a node")
		}
		pod.Spec.SchedulingGates = nil
		_, err = q.client.CoreV1().Pods("default").Update(ctx, pod, metav1.UpdateOptions{})
		return err
	}
	until(t, "the gate is gone", func() error { return ungate(t.Context()) })
	isOn(t, q, "gated", "small", "large")
	if pod, err := q.client.CoreV1().Pods("default").Get(t.Context(), "other", metav1.GetOptions{}); err != nil || pod.Spec.NodeName != "" {
		t.Errorf("a pod of another scheduler has the node %q (%v)", pod.Spec.NodeName, err)
	}
}

// TestSchedulerKilled kills the scheduler while it has hundreds of pods to place: in the end each has a node, and no
// node has more than fit on it.
func TestSchedulerKilled(t *testing.T) {
	t.Parallel()
	const pods = 300
	dir := t.TempDir()
	p := startAt(t, dir, "0", "--controllers=serviceaccount-controller")
	for i := range 4 {
		place(t, p, fmt.Sprintf("n%d", i), "10")
	}
	for i := range pods {
		wants(t, p, fmt.Sprintf("p%d", i), "100m", nil)
		if i == pods/2 {
			if err := p.cmd.Process.Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			<-p.ended
			p = startAt(t, dir, "0", "--controllers=serviceaccount-controller")
		}
	}
	until(t, "all pods have nodes", func() error {
		all, err := p.client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		used, bound := map[string]int{}, 0
		for _, pod := range all.Items {
			if pod.Spec.NodeName != "" {
				bound++
				used[pod.Spec.NodeName]++
			}
		}
		for node, n := range used {
			if n > 100 {
				t.Fatalf("%d pods are on node %s, where 100 fit", n, node)
			}
		}
		if bound < pods {
			return fmt.Errorf("%d of %d have", bound, pods)
		}
		return nil
	})
}

// TestPreemption has an important pod come to where one of less priority was, and a pod that must not preempt wait.
func TestPreemption(t *testing.T) {
	t.Parallel()
	p := startAt(t, t.TempDir(), "0", "--controllers=serviceaccount-controller")
	never := corev1.PreemptNever
	for _, class := range []schedulingv1.PriorityClass{
		{ObjectMeta: metav1.ObjectMeta{Name: "low"}, Value: 1},
		{ObjectMeta: metav1.ObjectMeta{Name: "patient"}, Value: 500, PreemptionPolicy: &never},
		{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 1000},
	} {
		if _, err := p.client.SchedulingV1().PriorityClasses().Create(t.Context(), &class, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	place(t, p, "only", "1")
	of := func(class string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { pod.Spec.PriorityClassName = class }
	}
	wants(t, p, "victim", "800m", of("low"))
	isOn(t, p, "victim", "only")
	wants(t, p, "patient", "900m", of("patient"))
	saysWhy(t, p, "patient", "preemption: not eligible due to preemptionPolicy=Never.")
	wants(t, p, "boss", "800m", of("high"))
	until(t, "the victim is asked to end", func() error {
		pod, err := p.client.CoreV1().Pods("default").Get(t.Context(), "victim", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if pod.DeletionTimestamp == nil {
			return errors.New("it is not")
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.DisruptionTarget && c.Reason == corev1.PodReasonPreemptionByScheduler {
				return nil
			}
		}
		return fmt.Errorf("it says %v", pod.Status.Conditions)
	})
	hasEvent(t, p, "victim", "Preempted")
	until(t, "the node is kept for the pod", func() error {
		pod, err := p.client.CoreV1().Pods("default").Get(t.Context(), "boss", metav1.GetOptions{})
		if err != nil || pod.Status.NominatedNodeName == "only" {
			return err
		}
		return fmt.Errorf("it is nominated to %q", pod.Status.NominatedNodeName)
	})
	// The kubelet has ended it.
	zero := int64(0)
	if err := p.client.CoreV1().Pods("default").Delete(t.Context(), "victim", metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
		t.Fatal(err)
	}
	isOn(t, p, "boss", "only")
}
