package control

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestSchedulerTells has a pod that fits nowhere be told of by an event, and attempts and pods that wait by metrics.
func TestSchedulerTells(t *testing.T) {
	t.Parallel()
	p := startAt(t, t.TempDir(), "0", "--controllers=serviceaccount-controller")
	place(t, p, "n", "2")
	// The scheduler knows the node by another watch than the pods: the first pod may be tried before it does.
	wants(t, p, "first", "1", nil)
	isOn(t, p, "first", "n")
	const (
		scheduled = `scheduler_schedule_attempts_total{profile="default-scheduler",result="scheduled"}`
		took      = `scheduler_scheduling_attempt_duration_seconds_count{profile="default-scheduler",result="scheduled"}`
		atOnce    = `scheduler_pod_scheduling_sli_duration_seconds_count{attempts="1"}`
	)
	until(t, "metrics tell of the first pod", func() error {
		if p.metric(t, scheduled) != 1 || p.metric(t, took) != 1 {
			return errors.New("they do not")
		}
		return nil
	})
	before := p.metric(t, atOnce)
	wants(t, p, "small", "1", nil)
	isOn(t, p, "small", "n")
	wants(t, p, "large", "2", nil)
	until(t, "an event says why the pod has no node", func() error {
		all, err := p.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=FailedScheduling"})
		if err != nil {
			return err
		}
		for _, e := range all.Items {
			if e.InvolvedObject.Name == "large" && strings.Contains(e.Message, "0/1 nodes are available: 1 Insufficient cpu.") {
				return nil
			}
		}
		return fmt.Errorf("events %v", all.Items)
	})
	until(t, "metrics tell of attempts", func() error {
		text, err := p.client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
		if err != nil {
			return err
		}
		for _, line := range []string{
			scheduled + " 2", took + " 2", fmt.Sprint(atOnce, " ", before+1),
			`scheduler_schedule_attempts_total{profile="default-scheduler",result="unschedulable"}`,
			`scheduler_pending_pods{queue="unschedulable"} 1`,
		} {
			if !strings.Contains(string(text), line) {
				return fmt.Errorf("%s is not among the metrics", line)
			}
		}
		return nil
	})
}

// TestGangMakesRoom has a gang come where others of less priority have all there is: they end for it.
func TestGangMakesRoom(t *testing.T) {
	t.Parallel()
	p := startAt(t, t.TempDir(), "0", "--controllers=serviceaccount-controller", "--runtime-config=scheduling.k8s.io/v1beta1=true")
	place(t, p, "n", "2")
	for _, name := range []string{"low-0", "low-1"} {
		wants(t, p, name, "1", nil)
		isOn(t, p, name, "n")
	}
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 1000}
	if _, err := p.client.SchedulingV1().PriorityClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	name := "gang"
	g := &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	g.Spec.SchedulingPolicy.Gang = &schedulingv1beta1.GangSchedulingPolicy{MinCount: 2}
	g.Spec.PriorityClassName = "high"
	until(t, "the group is made", func() error { // its class may not be known yet
		_, err := p.client.SchedulingV1beta1().PodGroups("default").Create(t.Context(), g, metav1.CreateOptions{})
		return err
	})
	for i := range 2 {
		wants(t, p, fmt.Sprintf("high-%d", i), "1", func(pod *corev1.Pod) {
			pod.Spec.PriorityClassName = "high"
			pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &name}
		})
	}
	now := int64(0)
	for _, low := range []string{"low-0", "low-1"} {
		until(t, low+" is to end", func() error {
			pod, err := p.client.CoreV1().Pods("default").Get(t.Context(), low, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if pod.DeletionTimestamp == nil {
				return fmt.Errorf("conditions %v", pod.Status.Conditions)
			}
			return nil
		})
		// No node ends it.
		if err := p.client.CoreV1().Pods("default").Delete(t.Context(), low, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
			t.Fatal(err)
		}
	}
	isOn(t, p, "high-0", "n")
	isOn(t, p, "high-1", "n")
}
