package drift

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/cgroups/kube"
)

// wanted is what the pod's group and those of its containers should have: by what the containers were given last.
func (d *drift) wanted(pod *corev1.Pod) ([]kube.Wanted, error) {
	pod = asGiven(pod)
	tree := d.cfg.Tree
	if d.cfg.Pins.Exclusive(pod.UID) {
		tree = d.cfg.Unlimited
	}
	out := []kube.Wanted{tree.WantedOfPod(pod)}
	groups, err := d.cfg.Tree.ContainerGroups(pod)
	if err != nil {
		return nil, err
	}
	ids := runningIDs(pod)
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			c := &list[i]
			if group, ok := groups[ids[c.Name]]; ok {
				out = append(out, d.cfg.Tree.WantedOfContainer(group, pod, c, d.cfg.Pins.Pin(pod.UID, c.Name)))
			}
		}
	}
	return out, nil
}

// runningState changes whenever a pod's groups may have to be looked at again.
func runningState(pod *corev1.Pod) string {
	return fmt.Sprint(pod.Generation, resizing(pod), runningIDs(pod))
}

func resizing(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodResizeInProgress && c.Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}

// asGiven is the pod with the resources that its containers have, where a resize that is wanted is deferred.
func asGiven(pod *corev1.Pod) *corev1.Pod {
	out := pod.DeepCopy()
	if out.Status.Resources != nil {
		out.Spec.Resources = out.Status.Resources
	}
	for _, list := range [][]corev1.ContainerStatus{out.Status.InitContainerStatuses, out.Status.ContainerStatuses} {
		for i := range list {
			if c := findContainer(out, list[i].Name); c != nil && list[i].Resources != nil {
				c.Resources = *list[i].Resources
			}
		}
	}
	return out
}

func runningIDs(pod *corev1.Pod) map[string]string {
	out := map[string]string{}
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			if _, id, ok := strings.Cut(list[i].ContainerID, "://"); ok && list[i].State.Running != nil {
				out[list[i].Name] = id
			}
		}
	}
	return out
}

func findContainer(pod *corev1.Pod, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}
