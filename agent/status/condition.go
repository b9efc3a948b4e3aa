package status

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// conditions are those that kubelet gives a pod, in its order, and in.Conditions behind them.
func conditions(in Input, st *corev1.PodStatus, old []corev1.PodCondition) []corev1.PodCondition {
	ready := containersReady(in, st)
	out := []corev1.PodCondition{
		readyToStart(in, st),
		initialized(in, st),
		gated(in, ready),
		ready,
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
	}
	for _, c := range in.Conditions {
		if i := slices.IndexFunc(out, func(o corev1.PodCondition) bool { return o.Type == c.Type }); i >= 0 {
			out[i] = c
			continue
		}
		out = append(out, c)
	}
	for i := range out {
		c := &out[i]
		c.ObservedGeneration = in.Pod.Generation
		c.LastTransitionTime = transition(in, st, c, old)
	}
	for _, c := range others(in.Pod) { // as they are
		if !slices.ContainsFunc(out, func(o corev1.PodCondition) bool { return o.Type == c.Type }) {
			out = append(out, c)
		}
	}
	return out
}

// Own are the conditions that say what the agent itself has seen or done.
func Own() []corev1.PodConditionType {
	return []corev1.PodConditionType{
		corev1.PodScheduled, corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodReadyToStartContainers,
		corev1.DisruptionTarget, corev1.PodResizePending, corev1.PodResizeInProgress, corev1.AllContainersRestarting,
	}
}

// others are the conditions that an API server's pod comes with and that are not the agent's: whoever watches over a
// readiness gate has set them. That the pod is to be disrupted others may say, too. A manifest has none.
func others(pod *corev1.Pod) []corev1.PodCondition {
	return slices.DeleteFunc(slices.Clone(pod.Status.Conditions), func(c corev1.PodCondition) bool {
		return c.Type != corev1.DisruptionTarget && slices.Contains(Own(), c.Type)
	})
}

// transition is when the condition became what it is. An agent that was restarted has not seen it, but the runtime's
// times tell when it must have been.
func transition(in Input, st *corev1.PodStatus, c *corev1.PodCondition, old []corev1.PodCondition) metav1.Time {
	if !c.LastTransitionTime.IsZero() {
		return c.LastTransitionTime
	}
	for _, o := range old {
		if o.Type == c.Type && o.Status == c.Status {
			return o.LastTransitionTime
		}
	}
	if len(old) == 0 {
		return metav1.NewTime(derived(in, st, c).Truncate(time.Second))
	}
	return metav1.NewTime(in.Now.Truncate(time.Second))
}

func derived(in Input, st *corev1.PodStatus, c *corev1.PodCondition) time.Time {
	var t time.Time
	later := func(v metav1.Time) {
		if v.After(t) {
			t = v.Time
		}
	}
	switch {
	case c.Type == corev1.PodScheduled:
		later(*st.StartTime)
	case c.Status != corev1.ConditionTrue:
	case c.Type == corev1.PodReadyToStartContainers:
		later(stamp(in.Sandbox.GetCreatedAt()))
	case c.Type == corev1.PodInitialized:
		later(*st.StartTime)
		for i := range st.InitContainerStatuses {
			s := &st.InitContainerStatuses[i].State
			if s.Terminated != nil {
				later(s.Terminated.FinishedAt)
			} else if s.Running != nil {
				later(s.Running.StartedAt)
			}
		}
	case c.Type == corev1.ContainersReady, c.Type == corev1.PodReady:
		for _, list := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses} {
			for i := range list {
				if r := list[i].State.Running; r != nil {
					later(r.StartedAt)
				}
			}
		}
	}
	if t.IsZero() || t.After(in.Now) {
		return in.Now
	}
	return t
}

// Condition is one that has the time of its transition from [Build].
func Condition(t corev1.PodConditionType, ok bool, reason, message string) corev1.PodCondition {
	c := corev1.PodCondition{Type: t, Status: corev1.ConditionTrue, Reason: reason, Message: message}
	if !ok {
		c.Status = corev1.ConditionFalse
	}
	return c
}

func over(st *corev1.PodStatus) bool {
	return st.Phase == corev1.PodSucceeded || st.Phase == corev1.PodFailed
}

func readyToStart(in Input, st *corev1.PodStatus) corev1.PodCondition {
	ok := in.Sandbox != nil && in.Sandbox.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY && !over(st)
	return Condition(corev1.PodReadyToStartContainers, ok, "", "")
}

// anyStarted says whether one of the pod's own containers has ever run, after which the pod stays initialized.
func anyStarted(st *corev1.PodStatus) bool {
	t := count(st.ContainerStatuses)
	return t.running+t.stopped > 0
}

func initialized(in Input, st *corev1.PodStatus) corev1.PodCondition {
	var not []string
	for i := range st.InitContainerStatuses {
		s, c := &st.InitContainerStatuses[i], &in.Pod.Spec.InitContainers[i]
		if IsSidecar(c) && (s.Started == nil || !*s.Started) || !IsSidecar(c) && !s.Ready {
			not = append(not, s.Name)
		}
	}
	switch {
	case st.Phase == corev1.PodSucceeded:
		return Condition(corev1.PodInitialized, true, "PodCompleted", "")
	case len(not) == 0 || anyStarted(st):
		return Condition(corev1.PodInitialized, true, "", "")
	}
	return Condition(corev1.PodInitialized, false, "ContainersNotInitialized", fmt.Sprintf("containers with incomplete status: %v", not))
}

func containersReady(in Input, st *corev1.PodStatus) corev1.PodCondition {
	switch st.Phase {
	case corev1.PodSucceeded:
		return Condition(corev1.ContainersReady, false, "PodCompleted", "")
	case corev1.PodFailed:
		return Condition(corev1.ContainersReady, false, "PodFailed", "")
	}
	var not []string
	for i := range st.InitContainerStatuses {
		// Of the init containers only those that go on beside the others count.
		if IsSidecar(&in.Pod.Spec.InitContainers[i]) && !st.InitContainerStatuses[i].Ready {
			not = append(not, st.InitContainerStatuses[i].Name)
		}
	}
	for i := range st.ContainerStatuses {
		if !st.ContainerStatuses[i].Ready {
			not = append(not, st.ContainerStatuses[i].Name)
		}
	}
	if len(not) > 0 {
		return Condition(corev1.ContainersReady, false, "ContainersNotReady", fmt.Sprintf("containers with unready status: %v", not))
	}
	return Condition(corev1.ContainersReady, true, "", "")
}

// gated is the Ready condition: the containers are, and every readiness gate has been opened by whoever watches over
// it.
func gated(in Input, ready corev1.PodCondition) corev1.PodCondition {
	ready.Type = corev1.PodReady
	if ready.Status != corev1.ConditionTrue {
		return ready
	}
	var shut []string
	all := slices.Concat(in.Conditions, others(in.Pod))
	for _, g := range in.Pod.Spec.ReadinessGates {
		i := slices.IndexFunc(all, func(c corev1.PodCondition) bool { return c.Type == g.ConditionType })
		switch {
		case i < 0:
			shut = append(shut, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", g.ConditionType))
		case all[i].Status != corev1.ConditionTrue:
			shut = append(shut, fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %v", g.ConditionType, all[i].Status))
		}
	}
	if len(shut) > 0 {
		return Condition(corev1.PodReady, false, "ReadinessGatesNotReady", strings.Join(shut, ", "))
	}
	return ready
}
