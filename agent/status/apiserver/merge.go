package apiserver

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// own are the conditions that a node's agent alone decides. Of others it says nothing, and takes none away, but that
// it, too, may say of a pod that it has ended why.
var own = []corev1.PodConditionType{
	corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled,
	corev1.PodResizePending, corev1.PodResizeInProgress, corev1.AllContainersRestarting,
}

// wanted is merge, and of a pod that is deleted, and gone here, the last of it.
func (a *act) wanted(has *corev1.PodStatus, moved map[corev1.PodConditionType]bool) corev1.PodStatus {
	st := merge(a.pod, has, moved)
	if a.deleted {
		ended(&st)
	}
	return st
}

// merge is the status that the server should have of a pod: what the node says, but for what is not the node's to say
// and for what would go backwards.
func merge(pod *corev1.Pod, has *corev1.PodStatus, moved map[corev1.PodConditionType]bool) corev1.PodStatus {
	st := *pod.Status.DeepCopy()
	wholeSeconds(&st)
	st.ObservedGeneration = max(st.ObservedGeneration, has.ObservedGeneration)
	if has.QOSClass != "" {
		st.QOSClass = has.QOSClass
	}
	st.NominatedNodeName, st.Resize = has.NominatedNodeName, has.Resize
	// By these a node may read claims: NodeRestriction refuses whoever would give them to itself.
	st.ResourceClaimStatuses, st.ExtendedResourceClaimStatus = has.ResourceClaimStatuses, has.ExtendedResourceClaimStatus
	st.NodeAllocatableResourceClaimStatuses = has.NodeAllocatableResourceClaimStatuses
	if st.VolumeHealth == nil {
		st.VolumeHealth = has.VolumeHealth
	}
	if has.StartTime != nil {
		st.StartTime = has.StartTime
	}
	switch {
	case final(has.Phase) && st.Phase != has.Phase:
		st.Phase, st.Reason, st.Message = has.Phase, has.Reason, has.Message
	case has.Phase == corev1.PodRunning && st.Phase == corev1.PodPending:
		st.Phase = has.Phase
	}
	containers(pod, pod.Spec.InitContainers, st.InitContainerStatuses, has.InitContainerStatuses)
	containers(pod, pod.Spec.Containers, st.ContainerStatuses, has.ContainerStatuses)
	containers(pod, nil, st.EphemeralContainerStatuses, has.EphemeralContainerStatuses)
	if final(st.Phase) {
		unready(&st)
	}
	st.Conditions = conditions(&st, has.Conditions, moved)
	return st
}

// containers keeps what the server has of containers that ours would send back.
func containers(pod *corev1.Pod, specs []corev1.Container, now, was []corev1.ContainerStatus) {
	for i := range now {
		j := slices.IndexFunc(was, func(s corev1.ContainerStatus) bool { return s.Name == now[i].Name })
		if j < 0 {
			continue
		}
		if t := was[j].State.Terminated; t != nil && now[i].State.Terminated == nil && !again(pod, specs, now[i].Name, t.ExitCode) {
			now[i] = was[j]
			continue
		}
		now[i].RestartCount = max(now[i].RestartCount, was[j].RestartCount)
	}
}

// again says whether a container that has ended may be anything else later. Where it may not, the server refuses the
// whole status that says so.
func again(pod *corev1.Pod, specs []corev1.Container, name string, code int32) bool {
	all := func(c corev1.Container) bool {
		return slices.ContainsFunc(c.RestartPolicyRules, func(r corev1.ContainerRestartRule) bool {
			return r.Action == corev1.ContainerRestartRuleActionRestartAllContainers
		})
	}
	if slices.ContainsFunc(pod.Spec.Containers, all) || slices.ContainsFunc(pod.Spec.InitContainers, all) {
		return true
	}
	i := slices.IndexFunc(specs, func(c corev1.Container) bool { return c.Name == name })
	if i < 0 || len(specs[i].RestartPolicyRules) > 0 {
		return true
	}
	policy := pod.Spec.RestartPolicy
	if specs[i].RestartPolicy != nil {
		policy = corev1.RestartPolicy(*specs[i].RestartPolicy)
	}
	switch policy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return code != 0
	}
	return true
}

// unready has a pod that is over be ready for nothing: the server may have ended it before the node knew.
func unready(st *corev1.PodStatus) {
	reason := "PodFailed"
	if st.Phase == corev1.PodSucceeded {
		reason = "PodCompleted"
	}
	for i := range st.Conditions {
		c := &st.Conditions[i]
		if (c.Type == corev1.PodReady || c.Type == corev1.ContainersReady) && c.Status == corev1.ConditionTrue {
			c.Status, c.Reason, c.Message = corev1.ConditionFalse, reason, ""
		}
	}
}

// conditions are those of the server with ours in their places. One that is what it was has been since then; an agent
// that was restarted can only guess when, unless it has seen the condition change itself.
func conditions(st *corev1.PodStatus, has []corev1.PodCondition, moved map[corev1.PodConditionType]bool) []corev1.PodCondition {
	out := slices.DeleteFunc(slices.Clone(has), func(c corev1.PodCondition) bool {
		return slices.Contains(own, c.Type) && find(st.Conditions, c.Type) == nil
	})
	for _, c := range st.Conditions {
		was := find(out, c.Type)
		shared := c.Type == corev1.DisruptionTarget && final(st.Phase) && (was == nil || was.Status != corev1.ConditionTrue)
		if !shared && !slices.Contains(own, c.Type) {
			continue
		}
		if was == nil {
			out = append(out, c)
			continue
		}
		if c.LastTransitionTime.Before(&was.LastTransitionTime) || c.Status == was.Status && !moved[c.Type] && !was.LastTransitionTime.IsZero() {
			c.LastTransitionTime = was.LastTransitionTime
		}
		if c.LastProbeTime.IsZero() {
			c.LastProbeTime = was.LastProbeTime
		}
		c.ObservedGeneration = max(c.ObservedGeneration, was.ObservedGeneration)
		*was = c
	}
	return out
}

// ended is a status as the last that a deleted pod has: controllers count a pod by its final phase, and one that was
// deleted before it could have one has failed. A container that nobody has seen the end of is gone all the same.
func ended(st *corev1.PodStatus) {
	if !final(st.Phase) {
		st.Phase = corev1.PodFailed
	}
	for _, list := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses, st.EphemeralContainerStatuses} {
		for i := range list {
			if r := list[i].State.Running; r != nil {
				list[i].Ready, list[i].State = false, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
					ExitCode: unknownExit, Reason: "ContainerStatusUnknown", StartedAt: r.StartedAt, ContainerID: list[i].ContainerID,
					Message: "The container could not be located when the pod was terminated",
				}}
			}
		}
	}
	unready(st)
}

// unknownExit is the exit code of a container of which it is not known, as kubelet has it: that of one that was killed.
const unknownExit = 137

// wholeSeconds cuts times to what the API has of them.
func wholeSeconds(st *corev1.PodStatus) {
	cut := func(t *metav1.Time) { t.Time = t.Truncate(time.Second) }
	if st.StartTime != nil {
		cut(st.StartTime)
	}
	for i := range st.Conditions {
		cut(&st.Conditions[i].LastTransitionTime)
		cut(&st.Conditions[i].LastProbeTime)
	}
	for _, list := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses, st.EphemeralContainerStatuses} {
		for i := range list {
			for _, s := range []*corev1.ContainerState{&list[i].State, &list[i].LastTerminationState} {
				if s.Running != nil {
					cut(&s.Running.StartedAt)
				}
				if s.Terminated != nil {
					cut(&s.Terminated.StartedAt)
					cut(&s.Terminated.FinishedAt)
				}
			}
		}
	}
}
