package pod

import (
	"context"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/spec"
)

// A runtime in a process of its own goes on with what it was told by an agent that is dead. The sandbox that it was
// making is in no list before it is ready, so the next agent may have removed the pod by then; of a container that it
// was creating the sandbox may be gone. Nobody would ever ask for either again. They are looked for whenever the
// runtime tells of a start in a pod that has no worker, and after it has begun to tell.

// orphans looks for what nobody knows of in the runtime.
type orphans struct {
	node   *node
	log    *slog.Logger
	wanted chan struct{} // there may be some
	found  chan []*corev1.Pod
}

// tells says whether an event is about something of ours that nobody knows.
func (f *orphans) tells(e *runtimeapi.ContainerEventResponse) bool {
	s := e.GetPodSandboxStatus()
	switch e.GetContainerEventType() {
	case runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT:
		return len(s.GetAnnotations()) == 0 || s.GetAnnotations()[spec.OwnerAnnotation] == f.node.cfg.RootDir
	}
	return false
}

// look asks for a look, soon.
func (f *orphans) look() {
	select {
	case f.wanted <- struct{}{}:
	default:
	}
}

// watch looks for orphans whenever it is asked to, until ctx ends.
func (f *orphans) watch(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wanted:
		}
		pods, err := f.find(ctx)
		if err != nil {
			if ctx.Err() == nil {
				f.log.Warn("runtime does not tell whether it has pods that nobody asked for", "error", err)
			}
			continue // it is away: there will be a look when it is back
		}
		if len(pods) == 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case f.found <- pods:
		}
	}
}

// find removes the containers without a sandbox, and returns the pods of the sandboxes without a worker.
func (f *orphans) find(ctx context.Context) ([]*corev1.Pod, error) {
	// In this order: a container's sandbox is there as long as it is itself.
	containers, err := f.node.cfg.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	sandboxes, err := f.node.cfg.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
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
		} else if c.GetAnnotations()[spec.OwnerAnnotation] == f.node.cfg.RootDir {
			f.log.Info("removing a container without a sandbox", "container", c.GetId())
			uid := types.UID(c.GetLabels()[spec.PodUIDLabel])
			if err := f.node.remover().RemoveContainer(ctx, uid, c.GetId()); err != nil {
				return nil, fmt.Errorf("remove container %s: %w", c.GetId(), err)
			}
		}
	}
	var out []*corev1.Pod
	for _, s := range sandboxes.GetItems() {
		uid := types.UID(s.GetMetadata().GetUid())
		if s.GetAnnotations()[spec.OwnerAnnotation] != f.node.cfg.RootDir || f.node.registry.has(uid) {
			continue
		}
		// Its worker may have ended since the list: a worker is there for longer than what it removes.
		again, err := f.node.cfg.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{
			Filter: &runtimeapi.PodSandboxFilter{Id: s.GetId()},
		})
		if err != nil {
			return nil, fmt.Errorf("list sandboxes: %w", err)
		}
		if len(again.GetItems()) > 0 {
			out = append(out, spec.Restore(s, of[s.GetId()]))
		}
	}
	return f.addDirectories(ctx, out)
}

// addDirectories adds the pods of which only directories are left.
func (f *orphans) addDirectories(ctx context.Context, pods []*corev1.Pod) ([]*corev1.Pod, error) {
	left, err := f.node.gone(ctx)
	if err != nil {
		return nil, err
	}
	known := map[types.UID]bool{}
	for _, p := range pods {
		known[p.UID] = true
	}
	for _, g := range left {
		if !known[g.UID] {
			known[g.UID] = true
			pods = append(pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: g.UID}})
		}
	}
	return pods, nil
}

// takeOrphans ends pods that nobody wants; one that is wanted is its worker's when it comes.
func (l *leftovers) takeOrphans(ctx context.Context, pods []*corev1.Pod) {
	for _, p := range pods {
		if !l.manager.Has(p.UID) {
			l.found[p.UID] = p
		}
	}
	if l.manager.node.registry.synced.Load() {
		l.adoptNone(ctx)
	}
}
