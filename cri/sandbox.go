package cri

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
	"github.com/berth-node/berth/cri/oci"
)

// sandboxState is where a sandbox is in its life:
//
//	           run                 stop, or the keeper ends               remove
//	creating ───────> ready ────────────────────────────────> notready ────────> (no record)
//	    │                                                         ^
//	    ├─ a step fails, or a crash: everything is undone ────────┼────────────> (no record)
//	    └─ ... and undoing fails: stop tries again ───────────────┘
//
// The record is written before what it announces is done, so a state found after a crash says what may have been begun.
type sandboxState string

const (
	sandboxCreating sandboxState = "creating"
	sandboxReady    sandboxState = "ready"
	sandboxNotReady sandboxState = "notready"
)

// sandbox is one pod's sandbox.
type sandbox struct {
	id  string
	cfg *runtimeapi.PodSandboxConfig // never changes
	ids *oci.IDs                     // nil: the host's; never changes
	op  oplock                       // held by what changes the state; taken before any container's

	mu       sync.RWMutex
	rec      sandboxRecord
	keeper   podKeeper     // nil when there is none
	trouble  *trouble      // why it cannot be asked; nil when it can
	joined   chan struct{} // closed when the keeper is in its cgroup
	quiet    bool          // the keeper has ended and has left nobody
	members  map[string]*container
	obscure  []string // containers of it whose records cannot be read
	stopTold bool     // plugins know that it stops
	torndown bool     // nothing but the directory and the record is left
	gone     bool     // nor these

	shm  sync.Mutex // one container after the other looks for shared memory
	rate cpuRate
}

func (sb *sandbox) record() sandboxRecord {
	sb.mu.RLock()
	defer sb.mu.RUnlock()
	return sb.rec
}

func (sb *sandbox) state() sandboxState {
	sb.mu.RLock()
	defer sb.mu.RUnlock()
	return sb.rec.State
}

// logAttrs name the sandbox in the log.
func (sb *sandbox) logAttrs() []any {
	meta := sb.cfg.GetMetadata()
	return []any{"pod", meta.GetNamespace() + "/" + meta.GetName(), "uid", meta.GetUid(), "sandbox", sb.id}
}

// live returns the keeper of a sandbox that is ready, and can be asked.
func (sb *sandbox) live() (podKeeper, error) {
	sb.mu.RLock()
	defer sb.mu.RUnlock()
	if sb.rec.State == sandboxReady && sb.trouble != nil {
		return nil, fmt.Errorf("%w: sandbox %s: %w", errUnavailable, sb.id, sb.trouble.err)
	}
	if sb.rec.State != sandboxReady || sb.keeper == nil {
		return nil, errors.Join(errPrecondition, errors.New("sandbox "+sb.id+" is not ready"))
	}
	return sb.keeper, nil
}

func (sb *sandbox) add(c *container) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	sb.members[c.id] = c
}

func (sb *sandbox) remove(c *container) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	delete(sb.members, c.id)
}

// containers returns the containers of the sandbox, in the order they were created.
func (sb *sandbox) containers() []*container {
	sb.mu.RLock()
	all := slices.Collect(maps.Values(sb.members))
	sb.mu.RUnlock()
	slices.SortFunc(all, func(a, b *container) int {
		return cmp.Or(cmp.Compare(a.createdAt, b.createdAt), cmp.Compare(a.id, b.id))
	})
	return all
}

func (sb *sandbox) setKeeper(k podKeeper) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	sb.keeper = k
}

// takeKeeper returns the keeper, which the caller ends, and leaves none.
func (sb *sandbox) takeKeeper() podKeeper {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	k := sb.keeper
	sb.keeper = nil
	return k
}

func (sb *sandbox) namespaceOptions() *runtimeapi.NamespaceOption {
	return sb.cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()
}

func (sb *sandbox) hostNetwork() bool {
	return sb.namespaceOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE
}

// network is the sandbox as the network knows it.
func (sb *sandbox) network() cni.Pod {
	meta := sb.cfg.GetMetadata()
	p := cni.Pod{
		ID: sb.id, Namespace: meta.GetNamespace(), Name: meta.GetName(), UID: meta.GetUid(),
		NetNS: sb.record().NetNS, Annotations: maps.Clone(sb.cfg.GetAnnotations()), CgroupParent: sb.cfg.GetLinux().GetCgroupParent(),
	}
	for _, m := range sb.cfg.GetPortMappings() {
		if m.GetHostPort() <= 0 {
			continue
		}
		p.Ports = append(p.Ports, cni.PortMapping{
			HostPort: m.GetHostPort(), ContainerPort: m.GetContainerPort(), Protocol: m.GetProtocol().String(), HostIP: m.GetHostIp(),
		})
	}
	return p
}

// pods are all sandboxes.
type pods struct {
	*machine
	records ledger[sandboxRecord]
	byID    *index[*sandbox]
	names   names

	containers *containers
	events     *hub
	life       *life
	unreadable unreadables
}

func newSandbox(rec sandboxRecord, cfg *runtimeapi.PodSandboxConfig) *sandbox {
	sb := &sandbox{id: rec.ID, cfg: cfg, op: newOplock(), rec: rec, members: map[string]*container{}}
	sb.ids = idsOf(sb)
	return sb
}

// update changes the sandbox's record, on disk first.
func (p *pods) update(sb *sandbox, change func(*sandboxRecord)) error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	rec := sb.rec
	change(&rec)
	if err := p.records.put(sb.id, rec); err != nil {
		return err
	}
	sb.rec = rec
	return nil
}

// note is update for what has happened already, whether it can be written down or not: a full disk must not keep pods from
// ending.
func (p *pods) note(sb *sandbox, change func(*sandboxRecord)) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	change(&sb.rec)
	if err := p.records.note(sb.id, sb.rec); err != nil {
		p.log.Error("sandbox record is not written", "sandbox", sb.id, "error", err)
	}
}

// drop ends the sandbox's record.
func (p *pods) drop(sb *sandbox) error {
	if err := p.records.drop(sb.id, p.paths.record(sb.id)); err != nil {
		return err
	}
	sb.mu.Lock()
	sb.gone = true
	sb.mu.Unlock()
	p.byID.delete(sb.id)
	p.names.release(sb.id)
	return nil
}

// oplock is a mutex whose waiters may give up.
type oplock chan struct{}

func newOplock() oplock { return make(oplock, 1) }

func (l oplock) lock(ctx context.Context) error {
	select {
	case l <- struct{}{}:
		return nil
	default:
	}
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l oplock) unlock() { <-l }
