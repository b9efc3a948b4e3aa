package environment

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Removals are the calls of a runtime by which sandboxes and containers go.
type Removals interface {
	RemovePodSandbox(context.Context, *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error)
	RemoveContainer(context.Context, *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error)
	ListContainers(context.Context, *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error)
}

// Killer ends what runs in groups.
type Killer interface {
	// KillIn kills what is in the groups of these containers and sandboxes in the group of a pod, and waits for the
	// deaths. Those that have no group there are left out.
	KillIn(ctx context.Context, uid types.UID, ids []string) error
}

// Remover removes sandboxes and containers, also those that a runtime refuses to remove because something of them
// lives: of a start that was cut off at the wrong moment containerd keeps a container that it says has exited, and
// whose `runc init` waits for ever. It neither stops nor removes that ("cannot delete running task"). What is in the
// group of such a container is killed, and the runtime asked again.
type Remover struct {
	Runtime Removals
	Killer  Killer
}

// Sandbox removes a sandbox of a pod with its containers; there may be none.
func (r Remover) Sandbox(ctx context.Context, uid types.UID, id string) error {
	return r.insist(ctx, uid, func() ([]string, error) {
		list, err := r.Runtime.ListContainers(ctx,
			&runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{PodSandboxId: id}})
		if err != nil {
			return nil, fmt.Errorf("list containers: %w", err)
		}
		ids := []string{id}
		for _, c := range list.GetContainers() {
			ids = append(ids, c.GetId())
		}
		return ids, nil
	}, func() error {
		_, err := r.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
		return err
	})
}

// Container removes a container of a pod that has ended; there may be none.
func (r Remover) Container(ctx context.Context, uid types.UID, id string) error {
	return r.insist(ctx, uid, func() ([]string, error) { return []string{id}, nil }, func() error {
		_, err := r.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})
		return err
	})
}

func (r Remover) insist(ctx context.Context, uid types.UID, whose func() ([]string, error), remove func() error) error {
	err := remove()
	if grpcstatus.Code(err) == codes.FailedPrecondition {
		ids, lerr := whose()
		if lerr != nil {
			return fmt.Errorf("%w; %w", err, lerr)
		}
		if kerr := r.Killer.KillIn(ctx, uid, ids); kerr != nil {
			return fmt.Errorf("%w; %w", err, kerr)
		}
		err = remove()
	}
	if isNotFound(err) {
		return nil
	}
	return err
}
