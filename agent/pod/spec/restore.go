package spec

import (
	"encoding/json"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Restore makes as much of a pod from what the runtime has of it as is needed to end it in good order: its containers
// with their preStop hooks, which of them are sidecars and in which order, and the grace they have.
func Restore(s *runtimeapi.PodSandbox, containers []*runtimeapi.Container) *corev1.Pod {
	m := s.GetMetadata()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: m.GetNamespace(), Name: m.GetName(), UID: types.UID(m.GetUid()), Annotations: s.GetAnnotations(),
	}}
	pod.Labels = map[string]string{}
	for k, v := range s.GetLabels() {
		if k != PodNameLabel && k != PodNamespaceLabel && k != PodUIDLabel {
			pod.Labels[k] = v
		}
	}
	places := map[string]int{}
	seen := map[string]bool{}
	for _, c := range containers {
		name, a := c.GetMetadata().GetName(), c.GetAnnotations()
		if g, err := strconv.ParseInt(a[graceAnnotation], 10, 64); err == nil {
			pod.Spec.TerminationGracePeriodSeconds = &g
		}
		if seen[name] {
			continue
		}
		seen[name] = true
		one := restoreContainer(name, c)
		place, err := strconv.Atoi(a[sidecarAnnotation])
		if err != nil {
			pod.Spec.Containers = append(pod.Spec.Containers, one)
			continue
		}
		one.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		places[name] = place
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, one)
	}
	slices.SortFunc(pod.Spec.InitContainers, func(a, b corev1.Container) int { return places[a.Name] - places[b.Name] })
	return pod
}

func restoreContainer(name string, c *runtimeapi.Container) corev1.Container {
	out := corev1.Container{Name: name, Image: c.GetImage().GetUserSpecifiedImage()}
	if out.Image == "" {
		out.Image = c.GetImage().GetImage()
	}
	a := c.GetAnnotations()
	var hook corev1.LifecycleHandler
	// A hook that cannot be read is one that cannot be run.
	if json.Unmarshal([]byte(a[preStopAnnotation]), &hook) == nil {
		out.Lifecycle = &corev1.Lifecycle{PreStop: &hook}
	}
	if json.Unmarshal([]byte(a[portsAnnotation]), &out.Ports) != nil {
		out.Ports = nil
	}
	return out
}
