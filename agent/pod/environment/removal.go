package environment

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Removals are the calls of a runtime by which sandboxes and containers end and go.
type Removals interface {
	RemovePodSandbox(context.Context, *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error)
	RemoveContainer(context.Context, *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error)
	StopPodSandbox(context.Context, *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error)
	StopContainer(context.Context, *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error)
	ListContainers(context.Context, *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error)
}

// Killer ends what runs in groups.
type Killer interface {
	// KillIn kills what is in the groups of these containers and sandboxes in the group of a pod, and waits for the
	// deaths. Those that have no group there are left out.
	KillIn(ctx context.Context, uid types.UID, ids []string) error
}

// overdue is how long a runtime may take to end what was to have ended by then, before that is killed for it.
const overdue = 15 * time.Second

// patience is how long a runtime may take to stop or remove something, beyond the grace that was asked for. It is
// kubelet's runtimeRequestTimeout.
const patience = 2 * time.Minute

// stopPatience is the same of a sandbox, whose network's plugins may be slow.
const stopPatience = 4 * time.Minute

// Remover stops and removes sandboxes and containers, also those that a runtime does not because something of them
// lives: of a start that was cut off at the wrong moment containerd keeps a container that it says has exited, and
// whose `runc init` waits for ever. It refuses to remove that ("cannot delete running task"). CRI-O does not answer
// while it cannot kill. What is in the group of such a container is killed, and the runtime goes on, or is asked again.
type Remover struct {
	Runtime Removals
	Killer  Killer
}

// RemoveSandbox removes a sandbox of a pod with its containers; there may be none.
func (r Remover) RemoveSandbox(ctx context.Context, uid types.UID, id string) error {
	return r.insist(ctx, uid, r.sandbox(id), 0, patience, func(ctx context.Context) error {
		_, err := r.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
		return err
	}, refused)
}

// RemoveContainer removes a container of a pod that has ended; there may be none.
func (r Remover) RemoveContainer(ctx context.Context, uid types.UID, id string) error {
	return r.insist(ctx, uid, one(id), 0, patience, func(ctx context.Context) error {
		_, err := r.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})
		return err
	}, refused)
}

// StopSandbox ends what runs in a sandbox of a pod, and its network; there may be none.
func (r Remover) StopSandbox(ctx context.Context, uid types.UID, id string) error {
	return r.insist(ctx, uid, r.sandbox(id), 0, stopPatience, func(ctx context.Context) error {
		_, err := r.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
		return err
	}, nil)
}

// StopContainer ends a container of a pod, which has so many seconds for it; there may be none.
func (r Remover) StopContainer(ctx context.Context, uid types.UID, id string, seconds int64) error {
	return r.insist(ctx, uid, one(id), time.Duration(seconds)*time.Second, patience, func(ctx context.Context) error {
		_, err := r.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: seconds})
		return err
	}, nil)
}

// one is a container, as what is to be killed in.
func one(id string) func(context.Context) ([]string, error) {
	return func(context.Context) ([]string, error) { return []string{id}, nil }
}

// sandbox is a sandbox with its containers.
func (r Remover) sandbox(id string) func(context.Context) ([]string, error) {
	return func(ctx context.Context) ([]string, error) {
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
	}
}

func refused(err error) bool { return grpcstatus.Code(err) == codes.FailedPrecondition }

// insist makes a call, and makes it again when it had no answer in time, or one for which that helps, once what lives
// was killed. The time begins when the grace is over.
func (r Remover) insist(
	ctx context.Context, uid types.UID, whose func(context.Context) ([]string, error), grace, limit time.Duration,
	call func(context.Context) error, helps func(error) bool,
) error {
	kill := func(ctx context.Context) error {
		ids, err := whose(ctx)
		if err != nil {
			return err
		}
		return r.Killer.KillIn(ctx, uid, ids)
	}
	limited, cancel := context.WithTimeout(ctx, grace+limit)
	err := impatient(limited, grace+overdue, call, kill)
	late := err != nil && limited.Err() != nil && ctx.Err() == nil
	cancel()
	if late || err != nil && helps != nil && helps(err) {
		limited, cancel := context.WithTimeout(ctx, grace+limit)
		defer cancel()
		if kerr := kill(limited); kerr != nil {
			return fmt.Errorf("%w; %w", err, kerr)
		}
		err = call(limited)
	}
	if isNotFound(err) {
		return nil
	}
	return err
}

// impatient makes a call, and another one when there is no answer for so long. What that fails with is not the end: it
// is made again when time is over.
func impatient(ctx context.Context, after time.Duration, call, meanwhile func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	timer := time.AfterFunc(after, func() {
		defer close(done)
		_ = meanwhile(ctx)
	})
	err := call(ctx)
	cancel()
	if !timer.Stop() {
		<-done
	}
	return err
}
