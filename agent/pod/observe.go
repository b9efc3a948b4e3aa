package pod

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/status"
)

const (
	created = runtimeapi.ContainerState_CONTAINER_CREATED
	running = runtimeapi.ContainerState_CONTAINER_RUNNING
	exited  = runtimeapi.ContainerState_CONTAINER_EXITED
)

// infoProblem is where the embedded runtime says, beside a sandbox's status, why it cannot manage it at the moment. What it tells of the
// sandbox is what it knew last.
const infoProblem = "problem"

// container is one that the runtime has.
type container struct {
	*runtimeapi.ContainerStatus
	sandbox string
}

// observed is what the runtime has of one pod. It is replaced, never changed.
type observed struct {
	sandboxes  []*runtimeapi.PodSandboxStatus // the newest first
	containers map[string][]container         // by name, the newest first
	problem    string                         // why the runtime cannot manage the newest sandbox; "" = it can
}

// sandbox is the newest one, nil when there is none.
func (o *observed) sandbox() *runtimeapi.PodSandboxStatus {
	if len(o.sandboxes) == 0 {
		return nil
	}
	return o.sandboxes[0]
}

// ready says whether containers can be started in the newest sandbox. One without an address is of no use to its pod.
func (o *observed) ready(hostNetwork bool) bool {
	s := o.sandbox()
	return s != nil && s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY && (hostNetwork || s.GetNetwork().GetIp() != "")
}

// latest is the newest container of the name, nil when there is none.
func (o *observed) latest(name string) *container {
	if list := o.containers[name]; len(list) > 0 {
		return &list[0]
	}
	return nil
}

// find returns the container with the ID.
func (o *observed) find(id string) *container {
	for _, list := range o.containers {
		for i := range list {
			if list[i].GetId() == id {
				return &list[i]
			}
		}
	}
	return nil
}

// statuses are all containers, as the status wants them.
func (o *observed) statuses() []*runtimeapi.ContainerStatus {
	var out []*runtimeapi.ContainerStatus
	for _, list := range o.containers {
		for _, c := range list {
			out = append(out, c.ContainerStatus)
		}
	}
	return out
}

// tells says whether an event is about something that is not seen yet.
func (o *observed) tells(e *runtimeapi.ContainerEventResponse) bool {
	if s := o.sandbox(); s != nil && s.GetId() == e.GetContainerId() {
		switch e.GetContainerEventType() {
		case runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT:
			return true // of one that still is ready: whether it can be managed has changed
		}
		return e.GetPodSandboxStatus() == nil || e.GetPodSandboxStatus().GetState() != s.GetState()
	}
	c := o.find(e.GetContainerId())
	switch e.GetContainerEventType() {
	case runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT:
		return c == nil
	case runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT:
		return c == nil || c.GetState() == created
	case runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT:
		return c != nil
	}
	return c == nil || c.GetState() == created || c.GetState() == running
}

// same says whether two observations are of one state.
func (o *observed) same(p *observed) bool {
	if len(o.sandboxes) != len(p.sandboxes) || len(o.containers) != len(p.containers) {
		return false
	}
	for i, s := range o.sandboxes {
		if s.GetId() != p.sandboxes[i].GetId() || s.GetState() != p.sandboxes[i].GetState() {
			return false
		}
	}
	for name, list := range o.containers {
		other := p.containers[name]
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

// observer asks the runtime about one pod, no more than it must.
type observer struct {
	runtime Runtime
	uid     types.UID

	known  []string             // sandboxes that may exist
	listed bool                 // known is all there is
	cache  map[string]container // by ID; the status of a container changes with its state only
}

// list asks for everything again at the next look.
func (o *observer) list() { o.listed = false }

// add makes a new sandbox known.
func (o *observer) add(sandbox string) {
	if sandbox != "" && !slices.Contains(o.known, sandbox) {
		o.known = append(o.known, sandbox)
	}
}

// look asks what there is. A pod's sandboxes are made by its worker only, so that after one list each of them can be asked for
// directly: a list costs the runtime a walk over all pods.
func (o *observer) look(ctx context.Context) (*observed, error) {
	if !o.listed {
		if err := o.relist(ctx); err != nil {
			return nil, err
		}
	}
	out := &observed{containers: map[string][]container{}}
	fresh := map[string]container{}
	problems := map[string]string{}
	var known []string
	for _, id := range o.known {
		r, err := o.runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
		if isNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("look at sandbox: %w", err)
		}
		known = append(known, id)
		out.sandboxes = append(out.sandboxes, r.GetStatus())
		if p := r.GetInfo()[infoProblem]; p != "" {
			problems[id] = p
		}
		if err := o.inSandbox(ctx, id, r, fresh); err != nil {
			return nil, err
		}
	}
	o.known, o.cache = known, fresh
	for _, c := range fresh {
		name := c.GetMetadata().GetName()
		out.containers[name] = append(out.containers[name], c)
	}
	for _, list := range out.containers {
		slices.SortFunc(list, func(a, b container) int { return status.Newer(a.ContainerStatus, b.ContainerStatus) })
	}
	slices.SortFunc(out.sandboxes, newer)
	out.problem = problems[out.sandbox().GetId()]
	return out, nil
}

func newer(a, b *runtimeapi.PodSandboxStatus) int {
	if d := int64(b.GetMetadata().GetAttempt()) - int64(a.GetMetadata().GetAttempt()); d != 0 {
		return int(d)
	}
	if a.GetCreatedAt() > b.GetCreatedAt() {
		return -1
	}
	return 1
}

// relist finds the sandboxes.
func (o *observer) relist(ctx context.Context) error {
	r, err := o.runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{
		LabelSelector: map[string]string{spec.PodUIDLabel: string(o.uid)},
	}})
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	o.known, o.cache, o.listed = nil, nil, true
	for _, s := range r.GetItems() {
		o.add(s.GetId())
	}
	return nil
}

// inSandbox adds the containers of a sandbox. Some runtimes tell them with the sandbox.
func (o *observer) inSandbox(ctx context.Context, id string, r *runtimeapi.PodSandboxStatusResponse, into map[string]container) error {
	if r.GetTimestamp() != 0 {
		for _, c := range r.GetContainersStatuses() {
			into[c.GetId()] = container{c, id}
		}
		return nil
	}
	list, err := o.runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{PodSandboxId: id}})
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	for _, c := range list.GetContainers() {
		if had, ok := o.cache[c.GetId()]; ok && had.GetState() == c.GetState() {
			into[c.GetId()] = had
			continue
		}
		r, err := o.runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: c.GetId()})
		if isNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("look at container: %w", err)
		}
		into[c.GetId()] = container{r.GetStatus(), id}
	}
	return nil
}

func isNotFound(err error) bool { return grpcstatus.Code(err) == codes.NotFound }
