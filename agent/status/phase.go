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
	again     int // of those stopped: will run again
}

func count(pod *corev1.Pod, list []corev1.ContainerStatus) tally {
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
			if Restarts(pod, &pod.Spec.Containers[i], false, s.State.Terminated.ExitCode) {
				t.again++
			}
		case s.LastTerminationState.Terminated != nil:
			t.stopped++
			t.again++ // it waits for that
		default:
			t.waiting++
		}
	}
	return t
}

// phase is the pod's phase:
//
//	Pending    until the init containers are done and each container has run
//	Running    while one runs, or will run again
//	Succeeded  when all have exited with 0 and none will run again
//	Failed     when none will run again and one has failed, or the node has failed the pod
//
// A pod whose sidecars still run is Running: its end is told when it is over.
func phase(in Input, st *corev1.PodStatus) corev1.PodPhase {
	t := count(in.Pod, st.ContainerStatuses)
	sidecars, pendingInit, failedInit, doomed := initState(in.Pod, st)
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
	case doomed && idle:
		return corev1.PodFailed
	case pendingInit && t.running == 0 && t.stopped == 0, t.waiting > 0:
		return corev1.PodPending
	case !idle || t.again > 0:
		return corev1.PodRunning
	case t.succeeded == t.stopped:
		return corev1.PodSucceeded
	}
	return corev1.PodFailed
}

// initState says whether a sidecar runs, whether an init container is not done yet, whether one has failed, and whether one has done
// so for good.
func initState(pod *corev1.Pod, st *corev1.PodStatus) (sidecars, pending, failed, doomed bool) {
	for i := range st.InitContainerStatuses {
		s, c := &st.InitContainerStatuses[i], &pod.Spec.InitContainers[i]
		if IsSidecar(c) {
			sidecars = sidecars || s.State.Running != nil
			pending = pending || s.Started == nil || !*s.Started
			continue
		}
		pending = pending || !s.Ready
		if t := s.State.Terminated; t != nil && t.ExitCode != 0 {
			failed = true
			doomed = doomed || !Restarts(pod, c, true, t.ExitCode)
		}
	}
	return sidecars, pending, failed, doomed
}
