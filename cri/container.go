package cri

import (
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/containerd/nri/pkg/api"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// containerState is where a container is in its life:
//
//	          create             start               the process runs             the process ends
//	creating ───────> created ─────────> starting ───────────────────> running ──────────────────> exited
//	    │                                    │                                                        ^
//	    │ a step fails, or a crash           └── it cannot be started, or has ended by then ──────────┘
//	    └──────────────────> (no record)
//
// From created and exited, remove leads to no record. A container never starts twice.
type containerState string

const (
	containerCreating containerState = "creating"
	containerCreated  containerState = "created"
	containerStarting containerState = "starting"
	containerRunning  containerState = "running"
	containerExited   containerState = "exited"
)

// cri is the state as clients know it: a container that is being started is still only created to them.
func (s containerState) cri() runtimeapi.ContainerState {
	switch s {
	case containerRunning:
		return runtimeapi.ContainerState_CONTAINER_RUNNING
	case containerExited:
		return runtimeapi.ContainerState_CONTAINER_EXITED
	default:
		return runtimeapi.ContainerState_CONTAINER_CREATED
	}
}

// Why a container ended, as CRI clients know it.
const (
	reasonCompleted  = "Completed"
	reasonError      = "Error"
	reasonOOMKilled  = "OOMKilled"
	reasonStartError = "StartError"
	reasonUnknown    = "Unknown"

	codeStartError = 128
	codeUnknown    = 255
)

// container is one container.
type container struct {
	id        string
	createdAt int64
	sandbox   *sandbox
	cfg       *runtimeapi.ContainerConfig  // never changes
	pod       *runtimeapi.PodSandboxConfig // what the client said of the sandbox, while it is made
	op        oplock                       // held by what changes the state
	done      chan struct{}                // closed when it has exited and nothing of it runs any more
	signalled atomic.Bool                  // its stop signal was sent
	dumping   atomic.Bool                  // a checkpoint of it is being made
	calledOff atomic.Bool                  // whether it was started is not known, and it is to end if it was
	rate      cpuRate

	mu   sync.RWMutex
	rec  containerRecord
	gone bool
	exec execBase // what an exec takes over from the container

	announced bool                   // plugins were told that it is being made
	others    []*api.ContainerUpdate // what they have asked for then
	evicted   string                 // why a plugin has it stopped; "" = none does
	exitTold  chan struct{}          // closed when they know of its end; nil when nobody tells them
}

func newContainer(rec containerRecord, cfg *runtimeapi.ContainerConfig, sb *sandbox) *container {
	c := &container{
		id: rec.ID, createdAt: rec.CreatedAt, sandbox: sb, cfg: cfg, op: newOplock(), done: make(chan struct{}), rec: rec,
	}
	if rec.State == containerExited {
		close(c.done)
	}
	return c
}

func (c *container) record() containerRecord {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.rec
}

func (c *container) removed() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.gone
}

// logAttrs name the container in the log.
func (c *container) logAttrs() []any {
	meta := c.sandbox.cfg.GetMetadata()
	return []any{"pod", meta.GetNamespace() + "/" + meta.GetName(), "uid", meta.GetUid(), "container", c.cfg.GetMetadata().GetName(), "id", c.id}
}

// logPath is "" when the container has no log.
func logPath(sb *runtimeapi.PodSandboxConfig, c *runtimeapi.ContainerConfig) string {
	if sb.GetLogDirectory() == "" || c.GetLogPath() == "" {
		return ""
	}
	return filepath.Join(sb.GetLogDirectory(), c.GetLogPath())
}

// containers are the containers of all sandboxes.
type containers struct {
	*machine
	records ledger[containerRecord]
	byID    *index[*container]
	names   names

	pods   *pods
	events *hub
	life   *life
	warned sync.Map // what was said already, once is enough

	filters filters
	dropped func(imageID string) // called when a container is gone; may be nil
}

// update changes the container's record, on disk first.
func (cs *containers) update(c *container, change func(*containerRecord)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	rec := c.rec
	change(&rec)
	if err := cs.records.put(c.id, rec); err != nil {
		return err
	}
	c.rec = rec
	return nil
}

// note is update for what has happened already, whether it can be written down or not. Where it cannot, because the disk is
// full perhaps, the next server learns it from the keeper.
func (cs *containers) note(c *container, change func(*containerRecord)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.rec)
	if err := cs.records.note(c.id, c.rec); err != nil {
		cs.log.Error("container record is not written", append(c.logAttrs(), "error", err)...)
	}
}

// drop ends the container's record.
func (cs *containers) drop(c *container) error {
	if err := cs.records.drop(c.id, cs.paths.ctrRecord(c.sandbox.id, c.id)); err != nil {
		return err
	}
	c.mu.Lock()
	c.gone = true
	c.mu.Unlock()
	cs.byID.delete(c.id)
	cs.names.release(c.id)
	c.sandbox.remove(c)
	if cs.dropped != nil {
		cs.dropped(c.record().ImageID)
	}
	return nil
}

// running finds a container that runs, for what only a running one can do.
func (cs *containers) running(id string) (*container, podKeeper, error) {
	c, err := cs.byID.get(id)
	if err != nil {
		return nil, nil, err
	}
	if s := c.record().State; s != containerRunning {
		return nil, nil, fmt.Errorf("%w: container is in %s state", errPrecondition, s.cri())
	}
	k, err := c.sandbox.live()
	if err != nil {
		return nil, nil, err
	}
	return c, k, nil
}

// execBase is what an exec takes over from its container: kept from the making of its specification, or read again after a
// restart.
type execBase struct {
	process  *specs.Process
	filtered bool     // it has a seccomp filter
	seccomp  []byte   // the filter, once an exec needed it
	groups   []string // the files of the container's cgroups, once an exec needed them
}

// newestContainer is the order of lists.
func newestContainer(a, b *container) int {
	switch {
	case a.createdAt > b.createdAt:
		return -1
	case a.createdAt < b.createdAt:
		return 1
	}
	return 0
}
