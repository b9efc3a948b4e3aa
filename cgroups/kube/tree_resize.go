package kube

import (
	"fmt"
	"math"

	corev1 "k8s.io/api/core/v1"
)

// ResizePod changes the limits of a pod that runs to what its specification says now, and has write change those of its
// containers at the right moment; ids are those that change, by name. A pod without a group has none to change. It is
// [cgroups.ErrInUse], and nothing has changed, when memory would be limited to less than is in use.
func (t *Tree) ResizePod(pod *corev1.Pod, ids map[string]string, write func(container string) error) error {
	path := t.PodPath(pod)
	if !t.h.Exists(path) {
		return nil
	}
	groups, err := t.h.Children(path)
	if err != nil {
		return fmt.Errorf("resize pod: %w", err)
	}
	var targets []Target
	names := map[string]string{}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			id := ids[list[i].Name]
			if id == "" {
				continue
			}
			target := Target{Path: path + "/" + id, Resources: ContainerResources(pod, &list[i], t.opts)}
			if g, ok := ContainerGroup(groups, id); ok {
				target.Path = path + "/" + g
			}
			names[target.Path] = list[i].Name
			targets = append(targets, target)
		}
	}
	want := PodResources(pod, t.opts)
	err = Resize(t.h, Target{path, want}, targets, func(c Target) error { return write(names[c.Path]) })
	if err != nil {
		return err
	}
	return t.d.Announce(path, Explicit(want)) // the runtime does it for the containers
}

// SettleQuota gives the pod's own group the CPU quota of its specification, or takes away the one it has: whichever it
// lacks since its containers were given CPUs of their own, or have them no more. One that has a quota and should is
// left as it is, and so is a pod without a group.
func (t *Tree) SettleQuota(pod *corev1.Pod) error {
	path, want := t.PodPath(pod), pickCPU(PodResources(pod, t.opts))
	if !t.h.Exists(path) || math.IsInf(cores(want), 1) == math.IsInf(coresOf(t.h, path), 1) {
		return nil
	}
	if err := t.d.Update(path, want); err != nil {
		return fmt.Errorf("settle quota of pod: %w", err)
	}
	return nil
}
