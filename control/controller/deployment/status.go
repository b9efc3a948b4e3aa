package deployment

import (
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Reasons of the condition Progressing, which kubectl rollout status and people's own scripts wait for.
const (
	reasonPaused   = "DeploymentPaused"
	reasonResumed  = "DeploymentResumed"
	reasonCreated  = "NewReplicaSetCreated"
	reasonFound    = "FoundNewReplicaSet"
	reasonUpdated  = "ReplicaSetUpdated"
	reasonComplete = "NewReplicaSetAvailable"
	reasonTimeout  = "ProgressDeadlineExceeded"
	reasonNotMade  = "ReplicaSetCreateError"

	// noDeadline is what earlier API versions had for none.
	noDeadline = 1<<31 - 1
)

func hasDeadline(d *appsv1.Deployment) bool {
	return d.Spec.ProgressDeadlineSeconds != nil && *d.Spec.ProgressDeadlineSeconds != noDeadline
}

func condition(s *appsv1.DeploymentStatus, kind appsv1.DeploymentConditionType) *appsv1.DeploymentCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == kind {
			return &s.Conditions[i]
		}
	}
	return nil
}

// set has a condition be so. One that says the same as before stays as it was, with its times.
func set(s *appsv1.DeploymentStatus, kind appsv1.DeploymentConditionType, is corev1.ConditionStatus, reason, message string, now time.Time) {
	c := appsv1.DeploymentCondition{
		Type: kind, Status: is, Reason: reason, Message: message, LastUpdateTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now),
	}
	if has := condition(s, kind); has != nil {
		if has.Status == is && has.Reason == reason {
			return
		}
		if has.Status == is {
			c.LastTransitionTime = has.LastTransitionTime
		}
	}
	unset(s, kind)
	s.Conditions = append(s.Conditions, c)
}

func unset(s *appsv1.DeploymentStatus, kind appsv1.DeploymentConditionType) {
	s.Conditions = slices.DeleteFunc(s.Conditions, func(c appsv1.DeploymentCondition) bool { return c.Type == kind })
}

// count is what a deployment says of the pods of its sets. now is the one of its template, if there is one.
func count(d *appsv1.Deployment, now *appsv1.ReplicaSet, old []*appsv1.ReplicaSet, conditions []appsv1.DeploymentCondition, at time.Time) appsv1.DeploymentStatus {
	s := appsv1.DeploymentStatus{
		ObservedGeneration: d.Generation, CollisionCount: d.Status.CollisionCount, Conditions: slices.Clone(conditions),
	}
	var wanted, ending int32
	for _, r := range append(slices.Clone(old), now) {
		if r == nil {
			continue
		}
		wanted += *r.Spec.Replicas
		s.Replicas += r.Status.Replicas
		s.ReadyReplicas += r.Status.ReadyReplicas
		s.AvailableReplicas += r.Status.AvailableReplicas
		if r.Status.TerminatingReplicas != nil {
			ending += *r.Status.TerminatingReplicas
		}
	}
	s.TerminatingReplicas = &ending
	if now != nil {
		s.UpdatedReplicas = now.Status.Replicas
	}
	s.UnavailableReplicas = max(wanted-s.AvailableReplicas, 0)
	_, unavailable := bounds(d)
	if s.AvailableReplicas >= *d.Spec.Replicas-unavailable {
		set(&s, appsv1.DeploymentAvailable, corev1.ConditionTrue, "MinimumReplicasAvailable", "Deployment has minimum availability.", at)
	} else {
		set(&s, appsv1.DeploymentAvailable, corev1.ConditionFalse, "MinimumReplicasUnavailable", "Deployment does not have minimum availability.", at)
	}
	return s
}

// complete says whether all pods of a deployment are of its template, and available, and no others are left.
func complete(d *appsv1.Deployment, s *appsv1.DeploymentStatus) bool {
	return s.UpdatedReplicas == *d.Spec.Replicas && s.Replicas == *d.Spec.Replicas && s.AvailableReplicas == *d.Spec.Replicas &&
		s.ObservedGeneration >= d.Generation
}

// advanced says whether a rollout is further than it was.
func advanced(s, before *appsv1.DeploymentStatus) bool {
	return s.UpdatedReplicas > before.UpdatedReplicas || s.Replicas-s.UpdatedReplicas < before.Replicas-before.UpdatedReplicas ||
		s.ReadyReplicas > before.ReadyReplicas || s.AvailableReplicas > before.AvailableReplicas
}

// judge says in the conditions how a rollout goes on, and when the passing of time alone changes that.
func judge(d *appsv1.Deployment, name string, s *appsv1.DeploymentStatus, now time.Time) time.Duration {
	if !hasDeadline(d) {
		unset(s, appsv1.DeploymentProgressing)
		return 0
	}
	is := condition(s, appsv1.DeploymentProgressing)
	// What is complete stays so while it is scaled, and when a pod fails.
	if s.Replicas == s.UpdatedReplicas && is != nil && is.Reason == reasonComplete {
		return 0
	}
	switch {
	case complete(d, s):
		set(s, appsv1.DeploymentProgressing, corev1.ConditionTrue, reasonComplete, fmt.Sprintf("%s has successfully progressed.", name), now)
		return 0
	case advanced(s, &d.Status):
		since := metav1.NewTime(now)
		if is != nil && is.Status == corev1.ConditionTrue {
			since = is.LastTransitionTime
		}
		// The time of the last progress is what the deadline counts from, so that it is written anew each time.
		unset(s, appsv1.DeploymentProgressing)
		s.Conditions = append(s.Conditions, appsv1.DeploymentCondition{
			Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: reasonUpdated, Message: name + " is progressing.",
			LastUpdateTime: metav1.NewTime(now), LastTransitionTime: since,
		})
	case is != nil && is.Reason != reasonTimeout && is.Reason != reasonComplete && !deadline(d, is).After(now):
		set(s, appsv1.DeploymentProgressing, corev1.ConditionFalse, reasonTimeout, name+" has timed out progressing.", now)
	}
	is = condition(s, appsv1.DeploymentProgressing)
	if is == nil || is.Reason == reasonTimeout || is.Reason == reasonComplete {
		return 0
	}
	return max(deadline(d, is).Sub(now), time.Millisecond)
}

// deadline is when a rollout that has not gone on is said to have failed. Times in conditions are cut to seconds.
func deadline(d *appsv1.Deployment, c *appsv1.DeploymentCondition) time.Time {
	return c.LastUpdateTime.Add(time.Duration(*d.Spec.ProgressDeadlineSeconds)*time.Second + time.Second)
}

// failing has a deployment say what its sets could not do, those of the new one first.
func failing(s *appsv1.DeploymentStatus, now *appsv1.ReplicaSet, old []*appsv1.ReplicaSet) {
	var found *appsv1.ReplicaSetCondition
	for _, r := range append([]*appsv1.ReplicaSet{now}, old...) {
		if r == nil || found != nil {
			continue
		}
		for i, c := range r.Status.Conditions {
			if c.Type == appsv1.ReplicaSetReplicaFailure {
				found = &r.Status.Conditions[i]
			}
		}
	}
	if found == nil {
		unset(s, appsv1.DeploymentReplicaFailure)
		return
	}
	set(s, appsv1.DeploymentReplicaFailure, found.Status, found.Reason, found.Message, found.LastTransitionTime.Time)
}

// pausing says in the conditions that a deployment is paused, or goes on: neither counts as progress, and the deadline
// begins anew.
func pausing(d *appsv1.Deployment, conditions []appsv1.DeploymentCondition, now time.Time) []appsv1.DeploymentCondition {
	s := appsv1.DeploymentStatus{Conditions: slices.Clone(conditions)}
	if !hasDeadline(d) {
		return s.Conditions
	}
	is := condition(&s, appsv1.DeploymentProgressing)
	if is != nil && is.Reason == reasonTimeout {
		return s.Conditions // it is known already that it does not go on
	}
	switch paused := is != nil && is.Reason == reasonPaused; {
	case d.Spec.Paused && !paused:
		set(&s, appsv1.DeploymentProgressing, corev1.ConditionUnknown, reasonPaused, "Deployment is paused", now)
	case !d.Spec.Paused && paused:
		set(&s, appsv1.DeploymentProgressing, corev1.ConditionUnknown, reasonResumed, "Deployment is resumed", now)
	}
	return s.Conditions
}
