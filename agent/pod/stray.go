package pod

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/spec"
)

// A runtime in a process of its own goes on with what it was told by an agent that is dead. The sandbox that it was making is in no
// list before it is ready, so the next agent may have removed the pod by then; of a container that it was creating the sandbox may
// be gone. Nobody would ever ask for either again. They are looked for whenever the runtime tells of a start in a pod that has no
// worker, and after it has begun to tell.

// straying says whether an event is about something of ours that nobody knows.
func (m *Manager) straying(e *runtimeapi.ContainerEventResponse) bool {
	s := e.GetPodSandboxStatus()
	switch e.GetContainerEventType() {
	case runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT:
		return len(s.GetAnnotations()) == 0 || s.GetAnnotations()[spec.OwnerAnnotation] == m.node.cfg.RootDir
	}
	return false
}

// lookForStrays asks for a look, soon.
func (m *Manager) lookForStrays() {
	select {
	case m.stray <- struct{}{}:
	default:
	}
}

// watchStrays looks for strays whenever it is asked to, until ctx ends.
func (m *Manager) watchStrays(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.stray:
		}
		pods, err := m.strays(ctx)
		if err != nil {
			if ctx.Err() == nil {
				m.log.Warn("runtime does not tell whether it has pods that nobody asked for", "error", err)
			}
			continue // it is away: there will be a look when it is back
		}
		if len(pods) == 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case m.strayed <- pods:
		}
	}
}

// strays removes the containers without a sandbox, and returns the pods of the sandboxes without a worker.
func (m *Manager) strays(ctx context.Context) ([]*corev1.Pod, error) {
	// In this order: a container's sandbox is there as long as it is itself.
	containers, err := m.node.cfg.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	sandboxes, err := m.node.cfg.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	of, there := map[string][]*runtimeapi.Container{}, map[string]bool{}
	for _, s := range sandboxes.GetItems() {
		there[s.GetId()] = true
	}
	for _, c := range containers.GetContainers() {
		if there[c.GetPodSandboxId()] {
			of[c.GetPodSandboxId()] = append(of[c.GetPodSandboxId()], c)
		} else if c.GetAnnotations()[spec.OwnerAnnotation] == m.node.cfg.RootDir {
			m.log.Info("removing a container without a sandbox", "container", c.GetId())
			if _, err := m.node.cfg.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: c.GetId()}); err != nil && !isNotFound(err) {
				return nil, fmt.Errorf("remove container %s: %w", c.GetId(), err)
			}
		}
	}
	var out []*corev1.Pod
	for _, s := range sandboxes.GetItems() {
		uid := types.UID(s.GetMetadata().GetUid())
		if s.GetAnnotations()[spec.OwnerAnnotation] != m.node.cfg.RootDir || m.Has(uid) {
			continue
		}
		// Its worker may have ended since the list: a worker is there for longer than what it removes.
		again, err := m.node.cfg.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{Id: s.GetId()}})
		if err != nil {
			return nil, fmt.Errorf("list sandboxes: %w", err)
		}
		if len(again.GetItems()) > 0 {
			out = append(out, spec.Restore(s, of[s.GetId()]))
		}
	}
	return out, nil
}

// takeStrays ends pods that nobody wants; one that is wanted is its worker's when it comes.
func (m *Manager) takeStrays(ctx context.Context, pods []*corev1.Pod) {
	for _, p := range pods {
		if !m.Has(p.UID) {
			m.found[p.UID] = p
		}
	}
	if m.node.registry.synced.Load() {
		m.adoptNone(ctx)
	}
}
