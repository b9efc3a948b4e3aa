package kube

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/cgroups"
)

// MemoryReading is what counts of the memory that a group has: [cgroups.WorkingSet], [cgroups.Unreclaimable] or
// [cgroups.Taken].
type MemoryReading func(h *cgroups.Hierarchy, path string) (uint64, error)

// MemoryOf is what a pod has of the memory, fs.ErrNotExist of one without a group.
func MemoryOf(t *Tree, pod *corev1.Pod, read MemoryReading) (uint64, error) {
	return read(t.h, t.PodPath(pod))
}

// MemoryOfContainers is what a pod's containers have, by the ID of the container or sandbox.
func MemoryOfContainers(t *Tree, pod *corev1.Pod, read MemoryReading) (map[string]uint64, error) {
	groups, err := t.ContainerGroups(pod)
	if err != nil {
		return nil, err
	}
	out := make(map[string]uint64, len(groups))
	for id, path := range groups {
		if used, err := read(t.h, path); err == nil { // else it has just ended
			out[id] = used
		}
	}
	return out, nil
}

// Tasks is how many tasks a pod has, fs.ErrNotExist of one without a group.
func Tasks(t *Tree, pod *corev1.Pod) (uint64, error) { return cgroups.Tasks(t.h, t.PodPath(pod)) }

// KillContainers sends SIGKILL to all that runs in the containers of a pod, whose IDs are given, and waits for the
// deaths. What is beside the containers, as the process that watches them, tells of their end. A container without
// a group is fs.ErrNotExist.
func KillContainers(ctx context.Context, t *Tree, pod *corev1.Pod, ids []string) error {
	groups, err := t.ContainerGroups(pod)
	if err != nil {
		return err
	}
	errs := make([]error, len(ids))
	var wait sync.WaitGroup
	for i, id := range ids {
		path, ok := groups[id]
		if !ok {
			errs[i] = fmt.Errorf("kill container %s: its group: %w", id, fs.ErrNotExist)
			continue
		}
		wait.Go(func() { errs[i] = t.h.Kill(ctx, path) })
	}
	wait.Wait()
	return errors.Join(errs...)
}

// KillIn sends SIGKILL to all that runs in the groups of containers and sandboxes, whose IDs are given, in the group of
// a pod, and waits for the deaths. The pod is looked for in every class, since all that is known of it may be its UID.
// What has no group there is left out.
func (t *Tree) KillIn(ctx context.Context, uid types.UID, ids []string) error {
	if strings.Contains(string(uid), "/") {
		return fmt.Errorf("kill in pod %q: not a UID", uid) // it could lead out of the pods' groups
	}
	var errs []error
	for _, q := range classes() {
		path := pathOf(t, uid, q)
		names, err := t.h.Children(path)
		errs = append(errs, err)
		for _, id := range ids {
			if name, ok := ContainerGroup(names, id); ok && id != "" {
				errs = append(errs, t.h.Kill(ctx, path+"/"+name))
			}
		}
	}
	return errors.Join(errs...)
}
