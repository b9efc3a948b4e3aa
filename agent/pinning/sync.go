package pinning

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/cpuset"

	"github.com/berth-node/berth/agent/pod/spec"
)

// syncRetry is how long it takes until the runtime is asked again that has refused to move a container.
const syncRetry = 10 * time.Second

// Run moves the running containers when what they may use has changed, until ctx ends. Every so often it puts all of them where
// they should be, whatever was known of them: somebody may have changed it.
func (m *Manager) Run(ctx context.Context, every time.Duration) {
	if m == nil {
		return
	}
	again := time.NewTicker(every)
	defer again.Stop()
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.changed:
		case <-retry:
		case <-again.C:
			m.syncing.Lock()
			m.applied = map[string]Pin{}
			m.syncing.Unlock()
		}
		retry = nil
		if err := m.Sync(ctx); err != nil && ctx.Err() == nil {
			m.log.Warn("containers are not on their CPUs", "error", err)
			retry = time.After(syncRetry)
		}
	}
}

// Started tells of a container that runs where pin says. What has changed since pin was asked for is made up for; without a pin
// nothing is known of where it runs.
func (m *Manager) Started(id string, uid types.UID, container string, pin *Pin) {
	if m == nil || !m.moves() {
		return
	}
	now := m.Pin(uid, container)
	if pin == nil || *pin != now {
		m.ring()
		return
	}
	m.syncing.Lock()
	m.applied[id] = now
	m.syncing.Unlock()
}

// moves says whether there is anything that could be moved.
func (m *Manager) moves() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cfg.StaticCPUs || m.cfg.StaticMemory || len(m.former) > 0
}

// Sync puts the running containers of all pods where they should be. When it has returned without an error nobody runs on CPUs
// that were given to another.
func (m *Manager) Sync(ctx context.Context) error {
	if m == nil || !m.moves() {
		return nil
	}
	m.syncing.Lock()
	defer m.syncing.Unlock()
	r, err := m.cfg.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
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
		want, quota := m.wantedFor(uid, name)
		if had, ok := m.applied[c.GetId()]; ok && had == want {
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
		if err := m.move(ctx, mv); err != nil {
			errs = append(errs, err)
			continue
		}
		applied[mv.id] = mv.to
	}
	m.applied = applied
	if len(errs) == 0 {
		errs = append(errs, m.forget())
	}
	return errors.Join(errs...)
}

// move is a container that is to run somewhere else.
type move struct {
	id    string
	to    Pin
	quota int64 // 0: as it is
}

func (m *Manager) move(ctx context.Context, mv move) error {
	if mv.to == (Pin{}) {
		return nil
	}
	_, err := m.cfg.Runtime.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{
		ContainerId: mv.id,
		Linux:       &runtimeapi.LinuxContainerResources{CpusetCpus: mv.to.CPUs, CpusetMems: mv.to.Mems, CpuQuota: mv.quota},
	})
	switch grpcstatus.Code(err) {
	case codes.OK:
		return nil
	case codes.NotFound, codes.FailedPrecondition:
		return nil // it has ended meanwhile
	}
	return fmt.Errorf("move container %s to CPUs %s: %w", mv.id, mv.to.CPUs, err)
}

// wantedFor is where a container should run. What an agent before this one has pinned, and this one does not, goes back to all.
func (m *Manager) wantedFor(uid types.UID, container string) (Pin, int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pin(uid, container)
	if p.Exclusive {
		return p, -1
	}
	if len(m.former) > 0 && !m.cfg.StaticCPUs {
		p.CPUs = m.cfg.Machine.All().String()
	}
	f := m.former[uid]
	if f == nil {
		return p, 0
	}
	var quota int64
	for i := range f.Containers {
		if f.Containers[i].Container != container {
			continue
		}
		if f.Containers[i].CPUs != "" {
			quota = m.quotas[uid][container]
		}
		if p.Mems == "" && len(f.Containers[i].Memory) > 0 {
			p.Mems = cpuset.New(m.align.all.list()...).String()
		}
	}
	return p, quota
}

// forget forgets what an agent before this one gave out, once everybody is where this one wants them. Where nothing is given out
// any more the file goes too.
func (m *Manager) forget() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.former) == 0 || !m.synced {
		return nil
	}
	if m.cfg.Enabled() {
		if err := m.save(); err != nil {
			return err
		}
	} else if err := os.Remove(m.cfg.File); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove assignments: %w", err)
	}
	clear(m.former)
	clear(m.quotas)
	return nil
}
