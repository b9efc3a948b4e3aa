package registry

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
)

func podColumns() []column {
	type kind = corev1.Pod
	return []column{
		col("Ready", "string", func(o *kind) any {
			s := summarize(o)
			return fmt.Sprintf("%d/%d", s.ready, s.total)
		}),
		col("Status", "string", func(o *kind) any { return summarize(o).reason }),
		col("Restarts", "string", func(o *kind) any {
			s := summarize(o)
			if s.restarts == 0 || s.restarted.IsZero() {
				return fmt.Sprint(s.restarts)
			}
			return fmt.Sprintf("%d (%s ago)", s.restarts, duration.HumanDuration(time.Since(s.restarted.Time)))
		}),
		wide(col("IP", "string", func(o *kind) any {
			if len(o.Status.PodIPs) == 0 {
				return none
			}
			return o.Status.PodIPs[0].IP
		})),
		wide(col("Node", "string", func(o *kind) any { return orNone(o.Spec.NodeName) })),
		wide(col("Nominated Node", "string", func(o *kind) any { return orNone(o.Status.NominatedNodeName) })),
		wide(col("Readiness Gates", "string", readinessGates)),
	}
}

func readinessGates(o *corev1.Pod) any {
	if len(o.Spec.ReadinessGates) == 0 {
		return none
	}
	met := 0
	for _, g := range o.Spec.ReadinessGates {
		if podIs(o, g.ConditionType) {
			met++
		}
	}
	return fmt.Sprintf("%d/%d", met, len(o.Spec.ReadinessGates))
}

func podIs(o *corev1.Pod, t corev1.PodConditionType) bool {
	return slices.ContainsFunc(o.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == t && c.Status == corev1.ConditionTrue
	})
}

// summary is what one line says of a pod.
type summary struct {
	reason       string
	ready, total int
	restarts     int32
	restarted    metav1.Time
}

func summarize(o *corev1.Pod) summary {
	s := summary{reason: string(o.Status.Phase), total: len(o.Spec.Containers)}
	if o.Status.Reason != "" {
		s.reason = o.Status.Reason
	}
	for _, c := range o.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonSchedulingGated {
			s.reason = corev1.PodReasonSchedulingGated
		}
	}
	sidecars, initializing := s.inits(o)
	if !initializing || podIs(o, corev1.PodInitialized) {
		s.restarts, s.restarted = sidecars.restarts, sidecars.restarted
		s.containers(o)
	}
	if o.DeletionTimestamp != nil {
		ended := o.Status.Phase == corev1.PodFailed || o.Status.Phase == corev1.PodSucceeded
		switch {
		case o.Status.Reason == "NodeLost":
			s.reason = "Unknown"
		case !ended:
			s.reason = "Terminating"
		}
	}
	return s
}

// inits goes through the init containers up to the one that the pod waits for, and sums up those that go on.
func (s *summary) inits(o *corev1.Pod) (sidecars summary, waiting bool) {
	restartable := map[string]bool{}
	for _, c := range o.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			restartable[c.Name] = true
			s.total++
		}
	}
	for i, c := range o.Status.InitContainerStatuses {
		s.restart(c)
		if restartable[c.Name] {
			sidecars.restart(c)
		}
		switch t, w := c.State.Terminated, c.State.Waiting; {
		case t != nil && t.ExitCode == 0:
			continue
		case restartable[c.Name] && c.Started != nil && *c.Started:
			if c.Ready {
				s.ready++
			}
			continue
		case t != nil:
			s.reason = "Init:" + ending(t)
		case w != nil && w.Reason != "" && w.Reason != "PodInitializing":
			s.reason = "Init:" + w.Reason
		default:
			s.reason = fmt.Sprintf("Init:%d/%d", i, len(o.Spec.InitContainers))
		}
		return sidecars, true
	}
	return sidecars, false
}

func (s *summary) containers(o *corev1.Pod) {
	running := false
	for _, c := range slices.Backward(o.Status.ContainerStatuses) {
		s.restart(c)
		switch t, w := c.State.Terminated, c.State.Waiting; {
		case w != nil && w.Reason != "":
			s.reason = w.Reason
		case t != nil:
			s.reason = ending(t)
		case c.Ready && c.State.Running != nil:
			running = true
			s.ready++
		}
	}
	if s.reason == "Completed" && running {
		s.reason = "NotReady"
		if podIs(o, corev1.PodReady) {
			s.reason = "Running"
		}
	}
}

func (s *summary) restart(c corev1.ContainerStatus) {
	s.restarts += c.RestartCount
	if t := c.LastTerminationState.Terminated; t != nil && s.restarted.Before(&t.FinishedAt) {
		s.restarted = t.FinishedAt
	}
}

func ending(t *corev1.ContainerStateTerminated) string {
	switch {
	case t.Reason != "":
		return t.Reason
	case t.Signal != 0:
		return fmt.Sprintf("Signal:%d", t.Signal)
	}
	return fmt.Sprintf("ExitCode:%d", t.ExitCode)
}
