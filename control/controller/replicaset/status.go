package replicaset

import (
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-node/berth/control/controller/owned"
)

// status is what a set says of its pods, and when the passing of time alone changes it. failed is what came of making
// or ending pods, of which diff were too many.
func status(s *appsv1.ReplicaSet, pods []*corev1.Pod, terminating int, failed error, diff int, now time.Time) (appsv1.ReplicaSetStatus, time.Duration) {
	out := *s.Status.DeepCopy()
	out.Replicas, out.FullyLabeledReplicas, out.ReadyReplicas, out.AvailableReplicas = int32(len(pods)), 0, 0, 0
	out.ObservedGeneration = s.Generation
	n := int32(terminating)
	out.TerminatingReplicas = &n
	var again time.Duration
	template := labels.SelectorFromSet(s.Spec.Template.Labels)
	for _, p := range pods {
		if template.Matches(labels.Set(p.Labels)) {
			out.FullyLabeledReplicas++
		}
		if !owned.Ready(p) {
			continue
		}
		out.ReadyReplicas++
		available, left := owned.Available(p, s.Spec.MinReadySeconds, now)
		if available {
			out.AvailableReplicas++
		} else if left > 0 && (again == 0 || left < again) {
			again = left
		}
	}
	out.Conditions = conditions(out.Conditions, failed, diff, now)
	return out, again
}

// conditions says of pods that could not be made or ended; the first word of it stays until it is over.
func conditions(all []appsv1.ReplicaSetCondition, failed error, diff int, now time.Time) []appsv1.ReplicaSetCondition {
	is := func(c appsv1.ReplicaSetCondition) bool { return c.Type == appsv1.ReplicaSetReplicaFailure }
	if failed == nil {
		return slices.DeleteFunc(all, is)
	}
	if slices.ContainsFunc(all, is) {
		return all
	}
	reason := owned.NotCreated
	if diff > 0 {
		reason = owned.NotRemoved
	}
	return append(all, appsv1.ReplicaSetCondition{
		Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, Reason: reason, Message: owned.Message(failed), LastTransitionTime: metav1.NewTime(now),
	})
}

// urgent says whether a status may not wait for the next change: when it is the end of something, or the beginning.
func urgent(s *appsv1.ReplicaSet, now appsv1.ReplicaSetStatus) bool {
	wanted := *s.Spec.Replicas
	return now.ObservedGeneration != s.Status.ObservedGeneration || len(now.Conditions) != len(s.Status.Conditions) ||
		now.AvailableReplicas == wanted && now.Replicas == wanted || now.AvailableReplicas < s.Status.AvailableReplicas
}
