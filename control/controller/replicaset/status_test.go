package replicaset

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestStatus counts pods, and says when one that is ready counts as available.
func TestStatus(t *testing.T) {
	at := time.Unix(1000, 0)
	pod := func(app string, since time.Duration) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app, "more": "x"}}}
		if since >= 0 {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(at.Add(-since))}}
		}
		return p
	}
	s := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Generation: 3}, Spec: appsv1.ReplicaSetSpec{
		MinReadySeconds: 10, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "a"}}},
	}}
	pods := []*corev1.Pod{pod("a", -1), pod("a", 2*time.Second), pod("a", 4*time.Second), pod("b", 20*time.Second)}
	got, again := status(s, pods, 2, nil, 0, at)
	want := appsv1.ReplicaSetStatus{
		Replicas: 4, FullyLabeledReplicas: 3, ReadyReplicas: 3, AvailableReplicas: 1, TerminatingReplicas: new(int32(2)), ObservedGeneration: 3,
	}
	if !reflect.DeepEqual(got, want) || again != 6*time.Second {
		t.Errorf("it is %+v, again in %s", got, again)
	}
}

// TestFailure has what the API has refused be said in its words, until it is over.
func TestFailure(t *testing.T) {
	at := time.Unix(1000, 0)
	refused := fmt.Errorf("create pod: %w", apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "p", errors.New("exceeded quota")))
	all := conditions(nil, refused, -1, at)
	if len(all) != 1 || all[0].Reason != "FailedCreate" || all[0].Message != `pods "p" is forbidden: exceeded quota` {
		t.Errorf("it is %v", all)
	}
	if again := conditions(all, errors.New("another"), -1, at.Add(time.Hour)); !reflect.DeepEqual(again, all) {
		t.Errorf("it is %v", again)
	}
	if over := conditions(all, nil, 0, at); len(over) != 0 {
		t.Errorf("it is %v", over)
	}
	if all := conditions(nil, errors.New("no"), 2, at); all[0].Reason != "FailedDelete" {
		t.Errorf("it is %v", all)
	}
}

// TestController has a replication controller be the same after it was a ReplicaSet.
func TestController(t *testing.T) {
	o := &corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Name: "rc", Namespace: "n", ResourceVersion: "7"},
		Spec: corev1.ReplicationControllerSpec{
			Replicas: new(int32(2)), MinReadySeconds: 4, Selector: map[string]string{"a": "b"}, Template: &corev1.PodTemplateSpec{},
		},
		Status: corev1.ReplicationControllerStatus{
			Replicas: 1, FullyLabeledReplicas: 2, ReadyReplicas: 3, AvailableReplicas: 4, ObservedGeneration: 5,
			Conditions: []corev1.ReplicationControllerCondition{{Type: corev1.ReplicationControllerReplicaFailure, Status: corev1.ConditionTrue, Reason: "r", Message: "m"}},
		},
	}
	if back := controllerOf(setOf(o)); !reflect.DeepEqual(back, o) {
		t.Errorf("it is %+v", back)
	}
}
