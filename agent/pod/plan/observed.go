package plan

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/eviction/collect"
)

// The states of a container that plans tell apart.
const (
	Created = runtimeapi.ContainerState_CONTAINER_CREATED
	Running = runtimeapi.ContainerState_CONTAINER_RUNNING
	Exited  = runtimeapi.ContainerState_CONTAINER_EXITED
)

// Container is one that the runtime has.
type Container struct {
	*runtimeapi.ContainerStatus
	Sandbox string
}

// Observed is what the runtime has of one pod. It is replaced, never changed.
type Observed struct {
	Sandboxes  []*runtimeapi.PodSandboxStatus // the newest first
	Containers map[string][]Container         // by name, the newest first
	Problem    string                         // why the runtime cannot manage the newest sandbox; "" = it can
}

// Sandbox is the newest one, nil when there is none.
func (o *Observed) Sandbox() *runtimeapi.PodSandboxStatus {
	if len(o.Sandboxes) == 0 {
		return nil
	}
	return o.Sandboxes[0]
}

// ready says whether containers can be started in the newest sandbox. One without an address is of no use to its pod.
func (o *Observed) ready(hostNetwork bool) bool {
	s := o.Sandbox()
	return s != nil && s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY && (hostNetwork || s.GetNetwork().GetIp() != "")
}

// Latest is the newest container of the name, nil when there is none.
func (o *Observed) Latest(name string) *Container {
	if list := o.Containers[name]; len(list) > 0 {
		return &list[0]
	}
	return nil
}

// Find returns the container with the ID.
func (o *Observed) Find(id string) *Container {
	for _, list := range o.Containers {
		for i := range list {
			if list[i].GetId() == id {
				return &list[i]
			}
		}
	}
	return nil
}

// Statuses are all containers, as the status wants them.
func (o *Observed) Statuses() []*runtimeapi.ContainerStatus {
	var out []*runtimeapi.ContainerStatus
	for _, list := range o.Containers {
		for _, c := range list {
			out = append(out, c.ContainerStatus)
		}
	}
	return out
}

// Dead are the containers that are kept for their logs alone: they have ended, and a later one of the same name tells
// what the pod does.
func (o *Observed) Dead(pod types.UID) []collect.Container {
	var out []collect.Container
	for name, list := range o.Containers {
		for _, c := range list[min(1, len(list)):] {
			if c.GetState() == Exited {
				out = append(out, collect.Container{
					ID: c.GetId(), Pod: pod, Name: name, Attempt: c.GetMetadata().GetAttempt(), Ended: time.Unix(0, c.GetFinishedAt()),
				})
			}
		}
	}
	return out
}

// Tells says whether an event is about something that is not seen yet.
func (o *Observed) Tells(e *runtimeapi.ContainerEventResponse) bool {
	if s := o.Sandbox(); s != nil && s.GetId() == e.GetContainerId() {
		switch e.GetContainerEventType() {
		case runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT:
			return true // of one that still is ready: whether it can be managed has changed
		}
		return e.GetPodSandboxStatus() == nil || e.GetPodSandboxStatus().GetState() != s.GetState()
	}
	c := o.Find(e.GetContainerId())
	switch e.GetContainerEventType() {
	case runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT:
		return c == nil
	case runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT:
		return c == nil || c.GetState() == Created
	case runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT:
		return c != nil
	}
	return c == nil || c.GetState() == Created || c.GetState() == Running
}

// Same says whether two observations are of one state.
func (o *Observed) Same(p *Observed) bool {
	if len(o.Sandboxes) != len(p.Sandboxes) || len(o.Containers) != len(p.Containers) {
		return false
	}
	for i, s := range o.Sandboxes {
		if s.GetId() != p.Sandboxes[i].GetId() || s.GetState() != p.Sandboxes[i].GetState() {
			return false
		}
	}
	for name, list := range o.Containers {
		other := p.Containers[name]
		if len(list) != len(other) {
			return false
		}
		for i, c := range list {
			if c.GetId() != other[i].GetId() || c.GetState() != other[i].GetState() {
				return false
			}
		}
	}
	return true
}
