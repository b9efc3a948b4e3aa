package pod

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/plan"
	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/status"
)

// infoProblem is where the embedded runtime says, beside a sandbox's status, why it cannot manage it at the moment.
// What it tells of the sandbox is what it knew last.
const infoProblem = "problem"

// observer asks the runtime about one pod, no more than it must.
type observer struct {
	runtime Runtime
	uid     types.UID

	known  []string                  // sandboxes that may exist
	listed bool                      // known is all there is
	cache  map[string]plan.Container // by ID; the status of a container changes with its state only

	seen  *plan.Observed
	stale bool              // seen may not be what is
	said  map[string]string // termination messages by container ID
}

// list asks for everything again at the next look.
func (o *observer) list() { o.listed = false }

// add makes a new sandbox known.
func (o *observer) add(sandbox string) {
	if sandbox != "" && !slices.Contains(o.known, sandbox) {
		o.known = append(o.known, sandbox)
	}
}

// look asks what there is. A pod's sandboxes are made by its worker only, so that after one list each of them can be
// asked for directly: a list costs the runtime a walk over all pods.
func (o *observer) look(ctx context.Context) (*plan.Observed, error) {
	if !o.listed {
		if err := o.relist(ctx); err != nil {
			return nil, err
		}
	}
	out := &plan.Observed{Containers: map[string][]plan.Container{}}
	fresh := map[string]plan.Container{}
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
		out.Sandboxes = append(out.Sandboxes, r.GetStatus())
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
		out.Containers[name] = append(out.Containers[name], c)
	}
	for _, list := range out.Containers {
		slices.SortFunc(list, func(a, b plan.Container) int { return status.Newer(a.ContainerStatus, b.ContainerStatus) })
	}
	slices.SortFunc(out.Sandboxes, newer)
	out.Problem = problems[out.Sandbox().GetId()]
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
func (o *observer) inSandbox(ctx context.Context, id string, r *runtimeapi.PodSandboxStatusResponse, into map[string]plan.Container) error {
	if r.GetTimestamp() != 0 {
		for _, c := range r.GetContainersStatuses() {
			into[c.GetId()] = plan.Container{ContainerStatus: c, Sandbox: id}
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
		into[c.GetId()] = plan.Container{ContainerStatus: r.GetStatus(), Sandbox: id}
	}
	return nil
}

func isNotFound(err error) bool { return grpcstatus.Code(err) == codes.NotFound }
