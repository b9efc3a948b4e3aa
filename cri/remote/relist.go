package remote

import (
	"context"
	"fmt"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// thing is a sandbox or container as the lists tell of it.
type thing struct {
	sandbox string // a container's sandbox, "" for a sandbox
	created int64
	started bool
	stopped bool
}

type things map[string]thing

// compareLists tells what has changed between two lists as events. Two calls a round are the least there is: the lists have
// neither exit codes nor addresses, which who hears the event asks for.
func (r *Runtime) compareLists(ctx context.Context, fn func(*runtimeapi.ContainerEventResponse)) error {
	before, err := r.lists(ctx)
	if err != nil {
		return err
	}
	tick := time.NewTicker(r.relist)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		now, err := r.lists(ctx)
		if err != nil {
			return err
		}
		for _, e := range changes(before, now.things) {
			e.PodSandboxStatus = &runtimeapi.PodSandboxStatus{Id: e.PodSandboxStatus.GetId()}
			if s, ok := now.sandboxes[e.PodSandboxStatus.Id]; ok {
				e.PodSandboxStatus = s
			} else if s, ok := before.sandboxes[e.PodSandboxStatus.Id]; ok {
				e.PodSandboxStatus = s
			}
			fn(e)
		}
		before = now
	}
}

type listing struct {
	things
	sandboxes map[string]*runtimeapi.PodSandboxStatus
}

func (r *Runtime) lists(ctx context.Context) (listing, error) {
	l := listing{things{}, map[string]*runtimeapi.PodSandboxStatus{}}
	sandboxes, err := r.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return l, fmt.Errorf("list sandboxes: %w", err)
	}
	containers, err := r.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return l, fmt.Errorf("list containers: %w", err)
	}
	for _, s := range sandboxes.Items {
		l.things[s.Id] = thing{created: s.CreatedAt, started: true, stopped: s.State == runtimeapi.PodSandboxState_SANDBOX_NOTREADY}
		l.sandboxes[s.Id] = &runtimeapi.PodSandboxStatus{
			Id: s.Id, Metadata: s.Metadata, State: s.State, CreatedAt: s.CreatedAt, Labels: s.Labels, Annotations: s.Annotations, RuntimeHandler: s.RuntimeHandler,
		}
	}
	for _, c := range containers.Containers {
		l.things[c.Id] = thing{
			sandbox: c.PodSandboxId, created: c.CreatedAt,
			started: c.State != runtimeapi.ContainerState_CONTAINER_CREATED, stopped: c.State == runtimeapi.ContainerState_CONTAINER_EXITED,
		}
	}
	return l, nil
}

// changes are the events that lead from one list to the next. What came and went in between is not seen.
func changes(before listing, now things) []*runtimeapi.ContainerEventResponse {
	var events []*runtimeapi.ContainerEventResponse
	tell := func(kind runtimeapi.ContainerEventType, id string, t thing) {
		sandbox := t.sandbox
		if sandbox == "" {
			sandbox = id
		}
		events = append(events, &runtimeapi.ContainerEventResponse{
			ContainerId: id, ContainerEventType: kind, CreatedAt: time.Now().UnixNano(),
			PodSandboxStatus: &runtimeapi.PodSandboxStatus{Id: sandbox},
		})
	}
	for id, t := range now {
		old, known := before.things[id]
		if !known {
			tell(runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, id, t)
		}
		if t.started && !old.started {
			tell(runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, id, t)
		}
		if t.stopped && !old.stopped {
			tell(runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, id, t)
		}
	}
	for id, t := range before.things {
		if _, ok := now[id]; !ok {
			tell(runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT, id, t)
		}
	}
	return events
}
