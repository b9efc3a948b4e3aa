package status

import (
	corev1 "k8s.io/api/core/v1"
)

// tally counts the pod's containers by what they do.
type tally struct {
	waiting   int // never ran
	running   int
	stopped   int // ran, and does not now
	succeeded int // of those stopped: with code 0
}

func count(list []corev1.ContainerStatus) tally {
	var t tally
	for i := range list {
		s := &list[i]
		switch {
		case s.State.Running != nil:
			t.running++
		case s.State.Terminated != nil:
			t.stopped++
			if s.State.Terminated.ExitCode == 0 {
				t.succeeded++
			}
		case s.LastTerminationState.Terminated != nil:
			t.stopped++
		default:
			t.waiting++
		}
	}
	return t
}

// phase is the pod's phase:
//
//	Pending    until the init containers are done and each container has run
//	Running    while one runs, or may run again
//	Succeeded  when the pod has ended and all have exited with 0
//	Failed     when the pod has ended and one has failed, or the node has failed the pod
//
// Exit codes alone do not say that a pod has ended: one that was sent back to its start may have only containers that
// have exited for good by their own policy, and starts them again nevertheless. Who plans the pod knows, and says it by
// Ended: nobody takes back a phase that is final.
func phase(in Input, st *corev1.PodStatus) corev1.PodPhase {
	t := count(st.ContainerStatuses)
	sidecars, pendingInit, failedInit := initState(in.Pod, st)
	idle := t.running == 0 && !sidecars
	switch {
	case in.Failed && (in.Ended || idle):
		return corev1.PodFailed
	case in.Ended:
		// What never ran has not succeeded.
		if t.succeeded == len(st.ContainerStatuses) && !failedInit {
			return corev1.PodSucceeded
		}
		return corev1.PodFailed
	case pendingInit && t.running == 0 && t.stopped == 0, t.waiting > 0:
		return corev1.PodPending
	}
	return corev1.PodRunning
}

// initState says whether a sidecar runs, whether an init container is not done yet, and whether one has failed.
func initState(pod *corev1.Pod, st *corev1.PodStatus) (sidecars, pending, failed bool) {
	for i := range st.InitContainerStatuses {
		s, c := &st.InitContainerStatuses[i], &pod.Spec.InitContainers[i]
		if IsSidecar(c) {
			sidecars = sidecars || s.State.Running != nil
			pending = pending || s.Started == nil || !*s.Started
			continue
		}
		pending = pending || !s.Ready
		failed = failed || s.State.Terminated != nil && s.State.Terminated.ExitCode != 0
	}
	return sidecars, pending, failed
}
