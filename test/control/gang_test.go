package control

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestGang has a group of five come where there is room for four: none is bound, whoever is killed, until there is room
// for all.
func TestGang(t *testing.T) {
	t.Parallel()
	dir, flags := t.TempDir(), []string{"--controllers=serviceaccount-controller", "--runtime-config=scheduling.k8s.io/v1beta1=true"}
	p := startAt(t, dir, "0", flags...)
	place(t, p, "four", "4")
	name := "gang"
	groups := p.client.SchedulingV1beta1().PodGroups("default")
	g := &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	g.Spec.SchedulingPolicy.Gang = &schedulingv1beta1.GangSchedulingPolicy{MinCount: 5}
	if _, err := groups.Create(t.Context(), g, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	of := func(pod *corev1.Pod) { pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &name} }
	for i := range 5 {
		wants(t, p, fmt.Sprintf("p%d", i), "1", of)
	}
	says := func(status metav1.ConditionStatus) {
		t.Helper()
		until(t, "the group says whether it has its nodes", func() error {
			g, err := groups.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if c := meta.FindStatusCondition(g.Status.Conditions, schedulingv1beta1.PodGroupInitiallyScheduled); c != nil && c.Status == status {
				return nil
			}
			return fmt.Errorf("conditions %v", g.Status.Conditions)
		})
	}
	none := func() {
		t.Helper()
		all, err := p.client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName!="})
		if err != nil || len(all.Items) > 0 {
			t.Fatalf("%d pods of the gang have nodes, %v", len(all.Items), err)
		}
	}
	says(metav1.ConditionFalse)
	none()
	p.of.Kill()
	p = startAt(t, dir, "0", flags...)
	groups = p.client.SchedulingV1beta1().PodGroups("default")
	// Others that are rejected after it say that the scheduler has looked at all.
	wants(t, p, "large", "8", nil)
	saysWhy(t, p, "large", "Insufficient cpu")
	none()
	place(t, p, "one", "1")
	for i := range 5 {
		isOn(t, p, fmt.Sprintf("p%d", i), "four", "one")
	}
	says(metav1.ConditionTrue)
}

// TestNoGangs has a pod of a group be a pod like any other where groups are not served.
func TestNoGangs(t *testing.T) {
	t.Parallel()
	p := share(t)
	p.hollow(t, "n")
	name := "gang"
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{
		SchedulingGroup: &corev1.PodSchedulingGroup{PodGroupName: &name}, Containers: []corev1.Container{{Name: "c", Image: "i"}},
	}}
	p.here(&pod.Spec)
	if _, err := p.client.CoreV1().Pods(p.ns).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the pod is on the node", func() error {
		o, err := p.client.CoreV1().Pods(p.ns).Get(t.Context(), "p", metav1.GetOptions{})
		if err == nil && o.Spec.NodeName != p.named("n") {
			err = fmt.Errorf("it is on %q, conditions %v", o.Spec.NodeName, o.Status.Conditions)
		}
		return err
	})
	if _, err := p.client.SchedulingV1beta1().PodGroups(p.ns).List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("groups are served by default")
	}
}
