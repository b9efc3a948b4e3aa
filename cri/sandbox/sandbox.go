// Package sandbox makes sandboxes, stops and removes them, and keeps them while their keeper does not answer. Of what
// lives in them it knows [Member] only.
package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cni"
	"github.com/berth-node/berth/cri/background"
	"github.com/berth-node/berth/cri/events"
	"github.com/berth-node/berth/cri/fault"
	"github.com/berth-node/berth/cri/handler"
	"github.com/berth-node/berth/cri/keeper"

	"github.com/berth-node/berth/cri/host"
	"github.com/berth-node/berth/cri/oci"
	"github.com/berth-node/berth/cri/oplock"
	"github.com/berth-node/berth/cri/quarantine"
	"github.com/berth-node/berth/cri/usage"
)

// State is where a sandbox is in its life:
//
//	           run                 stop, or the keeper ends               remove
//	creating ───────> ready ────────────────────────────────> notready ────────> (no record)
//	    │                                                         ^
//	    ├─ a step fails, or a crash: everything is undone ────────┼────────────> (no record)
//	    └─ ... and undoing fails: stop tries again ───────────────┘
//
// The record is written before what it announces is done, so a state found after a crash says what may have been begun.
type State string

// The states, as records have them.
const (
	// Creating is announced, and perhaps half made: clients do not know of it.
	Creating State = "creating"
	// Ready has a keeper and a network, and may have containers.
	Ready State = "ready"
	// NotReady has been stopped, has lost its keeper, or could not be undone.
	NotReady State = "notready"
)

// Sandbox is one pod's sandbox.
type Sandbox struct {
	ID     string
	Config *runtimeapi.PodSandboxConfig // never changes
	IDs    *oci.IDs                     // nil: the host's; never changes
	op     oplock.Lock                  // held by what changes the state; taken before any container's

	mu       sync.RWMutex
	rec      Record
	keeper   host.Keeper   // nil when there is none
	trouble  *trouble      // why it cannot be asked; nil when it can
	Joined   chan struct{} // closed when the keeper is in its cgroup
	quiet    bool          // the keeper has ended and has left nobody
	members  map[string]Member
	stopTold bool // plugins know that it stops
	torndown bool // nothing but the directory and the record is left
	gone     bool // nor these

	shm  sync.Mutex // one container after the other looks for shared memory
	Rate usage.Rate
}

// Record is what survives of it, as it is now.
func (sb *Sandbox) Record() Record {
	sb.mu.RLock()
	defer sb.mu.RUnlock()
	return sb.rec
}

// State is where it is in its life.
func (sb *Sandbox) State() State {
	sb.mu.RLock()
	defer sb.mu.RUnlock()
	return sb.rec.State
}

// LogAttrs name the sandbox in the log.
func (sb *Sandbox) LogAttrs() []any {
	meta := sb.Config.GetMetadata()
	return []any{"pod", meta.GetNamespace() + "/" + meta.GetName(), "uid", meta.GetUid(), "sandbox", sb.ID}
}

// Live returns the keeper of a sandbox that is ready, and can be asked.
func (sb *Sandbox) Live() (host.Keeper, error) {
	sb.mu.RLock()
	defer sb.mu.RUnlock()
	if sb.rec.State == Ready && sb.trouble != nil {
		return nil, fmt.Errorf("%w: sandbox %s: %w", fault.ErrUnavailable, sb.ID, sb.trouble.err)
	}
	if sb.rec.State != Ready || sb.keeper == nil {
		return nil, errors.Join(fault.ErrPrecondition, errors.New("sandbox "+sb.ID+" is not ready"))
	}
	return sb.keeper, nil
}

// Member is a container, as its sandbox knows it: what ends with the sandbox, or with its keeper.
type Member interface {
	ID() string
	CreatedAt() int64
	Status() *runtimeapi.ContainerStatus // nil while it is being made
	// End kills it, and returns when it has ended.
	End(ctx context.Context) error
	// AwaitTold waits until plugins have heard of its end, if it has ended.
	AwaitTold(ctx context.Context)
	// Exited takes note of an exit that the keeper tells of. It tells each one again after a restart.
	Exited(ctx context.Context, e keeper.Exit)
	// Abandon ends it when the keeper is gone. What became of it its exit record says, if there is one.
	Abandon(ctx context.Context, exits []keeper.Exit) error
	// ResumeStart asks for its start again, if it is not known what became of that. It fails when the keeper does not
	// answer.
	ResumeStart(ctx context.Context, k host.Keeper) error
	Remove(ctx context.Context) error
}

// Add makes m a member.
func (sb *Sandbox) Add(m Member) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	sb.members[m.ID()] = m
}

// Remove forgets the member id.
func (sb *Sandbox) Remove(id string) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	delete(sb.members, id)
}

// member is the one with an ID; nil when there is none.
func (sb *Sandbox) member(id string) Member {
	sb.mu.RLock()
	defer sb.mu.RUnlock()
	return sb.members[id]
}

// Members are the members of the sandbox, in the order they were created.
func (sb *Sandbox) Members() []Member {
	sb.mu.RLock()
	all := slices.Collect(maps.Values(sb.members))
	sb.mu.RUnlock()
	slices.SortFunc(all, func(a, b Member) int {
		return cmp.Or(cmp.Compare(a.CreatedAt(), b.CreatedAt()), cmp.Compare(a.ID(), b.ID()))
	})
	return all
}

// SetTornDown notes that nothing but the directory and the record is left.
func (sb *Sandbox) SetTornDown() {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	sb.torndown = true
}

// SetKeeper notes who the keeper is.
func (sb *Sandbox) SetKeeper(k host.Keeper) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	sb.keeper = k
}

// takeKeeper returns the keeper, which the caller ends, and leaves none.
func (sb *Sandbox) takeKeeper() host.Keeper {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	k := sb.keeper
	sb.keeper = nil
	return k
}

// NamespaceOptions say which namespaces the pod has of its own.
func (sb *Sandbox) NamespaceOptions() *runtimeapi.NamespaceOption {
	return sb.Config.GetLinux().GetSecurityContext().GetNamespaceOptions()
}

// HostNetwork says whether the pod is in the host's network.
func (sb *Sandbox) HostNetwork() bool {
	return sb.NamespaceOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE
}

// network is the sandbox as the network knows it.
func (sb *Sandbox) network() cni.Pod {
	meta := sb.Config.GetMetadata()
	p := cni.Pod{
		ID: sb.ID, Namespace: meta.GetNamespace(), Name: meta.GetName(), UID: meta.GetUid(),
		NetNS: sb.Record().NetNS, Annotations: maps.Clone(sb.Config.GetAnnotations()), CgroupParent: sb.Config.GetLinux().GetCgroupParent(),
	}
	for _, m := range sb.Config.GetPortMappings() {
		if m.GetHostPort() <= 0 {
			continue
		}
		p.Ports = append(p.Ports, cni.PortMapping{
			HostPort: m.GetHostPort(), ContainerPort: m.GetContainerPort(), Protocol: m.GetProtocol().String(), HostIP: m.GetHostIp(),
		})
	}
	return p
}

// Sandboxes are all sandboxes: their table, and what is done to them, each a part that knows only those above it.
type Sandboxes struct {
	host       *host.Host
	events     *events.Hub
	Table      *Table
	Joiner     *Joiner
	Builder    *Builder
	Watcher    *Watcher
	Quarantine *quarantine.Quarantine
}

// NewSandboxes puts the parts together.
func NewSandboxes(t *Table, q *quarantine.Quarantine, h *events.Hub, l *background.Tasks) *Sandboxes {
	m := t.host
	p := &Sandboxes{host: m, events: h, Table: t, Quarantine: q, Joiner: &Joiner{m, l}}
	p.Builder = &Builder{m, l, t, p.Joiner}
	p.Watcher = &Watcher{host: m, events: h, tasks: l, table: t, joiner: p.Joiner, quarantine: q}
	return p
}

// New is the sandbox of a record.
func New(rec Record, cfg *runtimeapi.PodSandboxConfig) *Sandbox {
	sb := &Sandbox{ID: rec.ID, Config: cfg, op: oplock.New(), rec: rec, members: map[string]Member{}}
	sb.IDs = idsOf(sb)
	return sb
}

// KeeperOf is the keeper, whatever the state of the sandbox.
func (sb *Sandbox) KeeperOf() (host.Keeper, error) {
	sb.mu.RLock()
	defer sb.mu.RUnlock()
	if sb.keeper == nil {
		return nil, fmt.Errorf("%w: sandbox %s has no keeper", fault.ErrPrecondition, sb.ID)
	}
	return sb.keeper, nil
}

// External is the runtime of a sandbox's containers, nil when that is libcontainer.
func (sb *Sandbox) External() *handler.OCI {
	sb.mu.RLock()
	defer sb.mu.RUnlock()
	if sb.rec.Runtime == nil {
		return nil
	}
	return sb.rec.Runtime.OCI
}

// Interpreter is the binary that a sandbox's containers are run by, "" when they are programs themselves.
func (sb *Sandbox) Interpreter() string {
	sb.mu.RLock()
	defer sb.mu.RUnlock()
	if sb.rec.Runtime == nil {
		return ""
	}
	return sb.rec.Runtime.Wasm
}

// CRI is the state as clients know it.
func (s State) CRI() runtimeapi.PodSandboxState {
	if s == Ready {
		return runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
}
