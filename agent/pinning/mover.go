package pinning

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/spec"
)

// move is a container that is to run somewhere else.
type move struct {
	id    string
	to    Pin
	quota quota
}

// quota is CPU time, both in microseconds: that of a period, -1 without a limit, or all 0: as it is.
type quota struct{ time, period int64 }

// mover moves running containers, and knows where it has put them.
type mover struct {
	runtime Runtime

	mu      sync.Mutex
	applied map[string]Pin // by container ID
}

// runs tells where a container runs.
func (o *mover) runs(id string, where Pin) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.applied[id] = where
}

// doubt forgets where the containers run, so that all of them are moved.
func (o *mover) doubt() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.applied = map[string]Pin{}
}

// sync puts all running containers where wanted says, and then calls done, before anybody else moves one.
func (o *mover) sync(ctx context.Context, wanted func(types.UID, string) (Pin, quota), done func() error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	r, err := o.runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	applied := map[string]Pin{}
	// Those who leave CPUs go before those who come to them: who shrinks is moved first.
	var leave, come []move
	for _, c := range r.GetContainers() {
		uid, name := types.UID(c.GetLabels()[spec.PodUIDLabel]), c.GetLabels()[spec.ContainerNameLabel]
		if uid == "" || name == "" {
			continue // not of a pod
		}
		want, quota := wanted(uid, name)
		if had, ok := o.applied[c.GetId()]; ok && had == want {
			applied[c.GetId()] = want
			continue
		}
		mv := move{c.GetId(), want, quota}
		if want.Exclusive {
			come = append(come, mv)
		} else {
			leave = append(leave, mv)
		}
	}
	var errs []error
	for _, mv := range append(leave, come...) {
		if err := o.move(ctx, mv); err != nil {
			errs = append(errs, err)
			continue
		}
		applied[mv.id] = mv.to
	}
	o.applied = applied
	if len(errs) == 0 {
		errs = append(errs, done())
	}
	return errors.Join(errs...)
}

func (o *mover) move(ctx context.Context, mv move) error {
	if mv.to == (Pin{}) {
		return nil
	}
	_, err := o.runtime.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{
		ContainerId: mv.id,
		Linux: &runtimeapi.LinuxContainerResources{
			CpusetCpus: mv.to.CPUs, CpusetMems: mv.to.Mems, CpuQuota: mv.quota.time, CpuPeriod: mv.quota.period,
		},
	})
	switch grpcstatus.Code(err) {
	case codes.OK:
		return nil
	case codes.NotFound, codes.FailedPrecondition:
		return nil // it has ended meanwhile
	}
	return fmt.Errorf("move container %s to CPUs %s: %w", mv.id, mv.to.CPUs, err)
}
