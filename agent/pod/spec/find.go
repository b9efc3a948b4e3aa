package spec

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// FindContainer returns the container of that name, of whatever kind; nil: the pod has none.
func FindContainer(pod *corev1.Pod, name string) *corev1.Container {
	if c := FindRegular(pod, name); c != nil {
		return c
	}
	for i := range pod.Spec.EphemeralContainers {
		if e := &pod.Spec.EphemeralContainers[i]; e.Name == name {
			return AsContainer(e)
		}
	}
	return nil
}

// FindVolume returns the volume of that name; nil: the pod has none.
func FindVolume(pod *corev1.Pod, name string) *corev1.Volume {
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Name == name {
			return &pod.Spec.Volumes[i]
		}
	}
	return nil
}

// AsContainer is an ephemeral container as what it has the fields of.
func AsContainer(e *corev1.EphemeralContainer) *corev1.Container {
	return (*corev1.Container)(&e.EphemeralContainerCommon)
}

// IsEphemeral says whether the container of that name is an ephemeral one.
func IsEphemeral(pod *corev1.Pod, name string) bool {
	for i := range pod.Spec.EphemeralContainers {
		if pod.Spec.EphemeralContainers[i].Name == name {
			return true
		}
	}
	return false
}

// Grace is the time that a pod's spec gives its containers to end.
func Grace(pod *corev1.Pod) time.Duration {
	if g := pod.Spec.TerminationGracePeriodSeconds; g != nil {
		return Seconds(*g)
	}
	return corev1.DefaultTerminationGracePeriodSeconds * time.Second
}

// longest is what "for ever" comes to. The API takes any number of seconds, of which most are longer than a duration
// can be.
const longest = 365 * 24 * time.Hour

// Seconds is a time as the API has it, without overflow.
func Seconds(n int64) time.Duration {
	return time.Duration(min(max(n, 0), int64(longest/time.Second))) * time.Second
}

// FindRegular returns the init container or container of that name; nil: the pod has none.
func FindRegular(pod *corev1.Pod, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}
