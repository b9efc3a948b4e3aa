// Package quarantine has what cannot be read and is left running.
package quarantine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cni"
	"github.com/berth-node/berth/cri/background"
	"github.com/berth-node/berth/cri/fault"
	"github.com/berth-node/berth/cri/host"
	"github.com/berth-node/berth/cri/oplock"
)

// Quarantine has the sandboxes and containers whose records cannot be read. What they are is not known, so they are
// left running, with all they have, and nothing takes their place. A sandbox goes when its processes have ended, as
// they do with the pod's cgroup, or when it is removed by its ID; a container with its sandbox, or when it ends.
type Quarantine struct {
	host          *host.Host
	tasks         *background.Tasks
	dropSandbox   dropRecord
	dropContainer dropRecord

	mu    sync.Mutex
	pods  map[string]unreadable // by ID
	ctrs  map[string]string     // the sandbox's ID by the container's; "" = not known
	cause map[string]error      // of containers

	removing oplock.Lock // one at a time: who waits for the end of a keeper removes what others are removing
}

// unreadable is one sandbox.
type unreadable struct {
	cause error
	group string // its cgroup, "" = not known
}

// dropRecord ends a record, see [ledger.Ledger.Drop].
type dropRecord func(id, own string) error

// New returns an empty quarantine. What is dropped from it loses its record by sandbox and container.
func New(m *host.Host, l *background.Tasks, sandbox, container dropRecord) *Quarantine {
	return &Quarantine{
		host: m, tasks: l, dropSandbox: sandbox, dropContainer: container, removing: oplock.New(),
		pods: map[string]unreadable{}, ctrs: map[string]string{}, cause: map[string]error{},
	}
}

// Sandbox says whether a sandbox is in it.
func (q *Quarantine) Sandbox(id string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, ok := q.pods[id]
	return ok
}

// Container says whether a container is in it.
func (q *Quarantine) Container(id string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, ok := q.ctrs[id]
	return ok
}

// Sandboxes are the IDs of those in it.
func (q *Quarantine) Sandboxes() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Collect(maps.Keys(q.pods))
}

// containersOf are the containers of a sandbox that cannot be read, or that only the sandbox explains.
func (q *Quarantine) containersOf(sandbox string) []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	var out []string
	for id, of := range q.ctrs {
		if of == sandbox {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// Told is what clients are shown, by ID.
func (q *Quarantine) Told() map[string]string {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := map[string]string{}
	for id, p := range q.pods {
		out[id] = "the record of this sandbox cannot be read: " + p.cause.Error()
	}
	for id, err := range q.cause {
		out[id] = "the record of this container cannot be read: " + err.Error()
	}
	return out
}

// AddSandbox leaves a sandbox as it is whose record cannot be read, and waits for its end.
func (q *Quarantine) AddSandbox(id string, cause error) {
	u := unreadable{cause, q.host.OrphanGroup(id)}
	q.mu.Lock()
	q.pods[id] = u
	q.mu.Unlock()
	const text = "record of a sandbox cannot be read; it goes on, cannot be managed, and is not replaced until it is removed"
	q.host.Log.Error(text,
		"sandbox", id, "cgroup", u.group, "error", cause)
	q.tasks.Start(func(ctx context.Context) {
		if err := q.host.Keepers.AwaitEnd(ctx, q.host.Paths.Sandbox(id).Keeper()); err != nil {
			return
		}
		if err := q.RemoveSandbox(ctx, id); err != nil && ctx.Err() == nil {
			q.host.Log.Warn("sandbox without a readable record is not removed, the next start tries again",
				"sandbox", id, "error", err)
		}
	})
}

// AddContainer leaves a container as it is whose record cannot be read, or whose sandbox has none that can. One that
// has ended is removed. of names the sandbox in the log, and is nil where that is not known.
func (q *Quarantine) AddContainer(id, sandbox string, of []any, cause error) {
	known := of != nil
	if !known && !q.Sandbox(sandbox) || known && q.hasEnded(sandbox, id) {
		// Never started, or over. What it has is found by its directory, like that of anybody.
		q.host.Log.Warn("container without a readable record is removed",
			"id", id, "sandbox", sandbox, "error", cause)
		if err := q.dropContainer(id, q.host.Paths.Sandbox(sandbox).ContainerRecord(id)); err != nil {
			q.host.Log.Warn("record of a container is not removed", "id", id, "error", err)
		}
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ctrs[id] = sandbox
	if !known {
		return
	}
	q.cause[id] = cause
	const text = "record of a container cannot be read; it goes on, and its pod gets no other container until it has ended"
	q.host.Log.Error(text, append(of, "id", id, "error", cause)...)
}

// hasEnded says whether the keeper has recorded the end of a container, or never began it.
func (q *Quarantine) hasEnded(sandbox, id string) bool {
	dir := q.host.Paths.Sandbox(sandbox).Keeper()
	_, exit := os.Lstat(filepath.Join(dir, "exit", id))
	_, begun := os.Lstat(filepath.Join(dir, "c", id))
	return exit == nil || errors.Is(begun, os.ErrNotExist)
}

// Replaces refuses a sandbox that would take the place of one whose record cannot be read: both would be the same pod.
func (q *Quarantine) Replaces(cfg *runtimeapi.PodSandboxConfig) error {
	parent := cfg.GetLinux().GetCgroupParent()
	if parent == "" {
		return nil // of many pods
	}
	parent = path.Dir(q.host.CgroupOf(parent, "x"))
	q.mu.Lock()
	defer q.mu.Unlock()
	for id, u := range q.pods {
		if u.group != "" && path.Dir(u.group) == parent {
			return fmt.Errorf("%w: sandbox %s of this pod is there, and its record cannot be read (%w): it goes on until "+
				"the pod is removed", fault.ErrUnavailable, id, u.cause)
		}
	}
	return nil
}

// Obscured is why a sandbox gets no further container: one of its own, that may be the same, cannot be read.
func (q *Quarantine) Obscured(sandbox string) error {
	ids := q.containersOf(sandbox)
	if len(ids) == 0 {
		return nil
	}
	return fmt.Errorf("%w: the record of container %s of this pod cannot be read: it goes on until it ends, or the pod "+
		"is removed", fault.ErrUnavailable, ids[0])
}

// RemoveSandbox removes a sandbox whose record cannot be read, and its containers.
func (q *Quarantine) RemoveSandbox(ctx context.Context, id string) error {
	if err := q.removing.Lock(ctx); err != nil {
		return err
	}
	defer q.removing.Unlock()
	if !q.Sandbox(id) {
		return nil
	}
	errs := []error{host.RemoveOrphanSandbox(ctx, q.host, id)}
	for _, c := range q.containersOf(id) {
		errs = append(errs, q.removeContainer(ctx, c))
	}
	netns := filepath.Join(q.host.Paths.NetNS(), id)
	if _, err := os.Lstat(netns); err == nil {
		errs = append(errs, q.host.Net.Teardown(ctx, cni.Pod{ID: id, NetNS: netns}), q.host.Net.RemoveNamespace(id))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	if err := q.dropSandbox(id, q.host.Paths.Sandbox(id).Record()); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.pods, id)
	return nil
}

// removeContainer removes what a container has whose record cannot be read, and whose processes end with it.
func (q *Quarantine) removeContainer(ctx context.Context, id string) error {
	if err := host.RemoveOrphanContainer(ctx, q.host, id); err != nil {
		return err
	}
	for _, snap := range q.host.Snaps.List() {
		if snap.Key == id || len(snap.Key) > len(id) && snap.Key[:len(id)+1] == id+"-" {
			if err := q.host.Snaps.Remove(ctx, snap.Key); err != nil {
				return err
			}
		}
	}
	q.mu.Lock()
	sandbox := q.ctrs[id]
	q.mu.Unlock()
	// Not under the lock, which Status waits for: it writes to the disk.
	if err := q.dropContainer(id, q.host.Paths.Sandbox(sandbox).ContainerRecord(id)); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.ctrs, id)
	delete(q.cause, id)
	return nil
}

// ClearUp removes the containers of a sandbox whose records cannot be read: one that has ended, or all, "".
func (q *Quarantine) ClearUp(ctx context.Context, sandbox, ended string) error {
	for _, id := range q.containersOf(sandbox) {
		if ended != "" && id != ended {
			continue
		}
		if err := q.removeContainer(ctx, id); err != nil {
			return fmt.Errorf("remove container %s: %w", id, err)
		}
	}
	return nil
}
