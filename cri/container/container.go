// Package container makes containers, starts, changes, enters, stops and removes them. It uses sandboxes, and they know
// nothing of it.
package container

import (
	"context"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/containerd/nri/pkg/api"

	"github.com/berth-node/berth/cri/background"
	"github.com/berth-node/berth/cri/events"
	"github.com/berth-node/berth/cri/host"
	"github.com/berth-node/berth/cri/keeper"
	"github.com/berth-node/berth/cri/oplock"
	"github.com/berth-node/berth/cri/sandbox"
	"github.com/berth-node/berth/cri/usage"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// State is where a container is in its life:
//
//	          create             start               the process runs             the process ends
//	creating ───────> created ─────────> starting ───────────────────> running ──────────────────> exited
//	    │                                    │                                                        ^
//	    │ a step fails, or a crash           └── it cannot be started, or has ended by then ──────────┘
//	    └──────────────────> (no record)
//
// From created and exited, remove leads to no record. A container never starts twice.
type State string

// The states, as records have them.
const (
	// Creating is announced, and perhaps half made: the CRI knows no such container.
	Creating State = "creating"
	// Created has all but a process.
	Created State = "created"
	// Starting may have a process: the keeper was asked for it, or is about to be.
	Starting State = "starting"
	// Running has a process.
	Running State = "running"
	// Exited has none any more, and never will.
	Exited State = "exited"
)

// CRI is the state as clients know it: a container that is being started is still only created to them.
func (s State) CRI() runtimeapi.ContainerState {
	switch s {
	case Running:
		return runtimeapi.ContainerState_CONTAINER_RUNNING
	case Exited:
		return runtimeapi.ContainerState_CONTAINER_EXITED
	default:
		return runtimeapi.ContainerState_CONTAINER_CREATED
	}
}

// state is that of the container as clients know it. One whose start an agent before this one has asked for, of which
// its keeper has not told yet what became, may run: who takes it for one that never did ends it without its hook.
func (c *Container) state(rec Record) runtimeapi.ContainerState {
	if rec.State == Starting && c.inherited {
		return runtimeapi.ContainerState_CONTAINER_RUNNING
	}
	return rec.State.CRI()
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

// Container is one container.
type Container struct {
	ID        string
	createdAt int64
	Sandbox   *sandbox.Sandbox
	Config    *runtimeapi.ContainerConfig  // never changes
	pod       *runtimeapi.PodSandboxConfig // what the client said of the sandbox, while it is made
	op        oplock.Lock                  // held by what changes the state
	Done      chan struct{}                // closed when it has exited and nothing of it runs any more
	signalled atomic.Bool                  // its stop signal was sent
	dumping   atomic.Bool                  // a checkpoint of it is being made
	calledOff atomic.Bool                  // whether it was started is not known, and it is to end if it was
	inherited bool                         // its start was asked for by a process before this one
	rate      usage.Rate

	mu   sync.RWMutex
	rec  Record
	gone bool
	exec execBase // what an exec takes over from the container

	announced bool                   // plugins were told that it is being made
	others    []*api.ContainerUpdate // what they have asked for then
	evicted   string                 // why a plugin has it stopped; "" = none does
	exitTold  chan struct{}          // closed when they know of its end; nil when nobody tells them
}

func newContainer(rec Record, cfg *runtimeapi.ContainerConfig, sb *sandbox.Sandbox) *Container {
	c := &Container{
		ID: rec.ID, createdAt: rec.CreatedAt, Sandbox: sb, Config: cfg, op: oplock.New(), Done: make(chan struct{}), rec: rec,
		inherited: rec.State == Starting,
	}
	if rec.State == Exited {
		close(c.Done)
	}
	return c
}

// Record is what survives of it, as it is now.
func (c *Container) Record() Record {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.rec
}

func (c *Container) removed() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.gone
}

// LogAttrs name the container in the log.
func (c *Container) LogAttrs() []any {
	meta := c.Sandbox.Config.GetMetadata()
	return []any{"pod", meta.GetNamespace() + "/" + meta.GetName(), "uid", meta.GetUid(), "container", c.Config.GetMetadata().GetName(), "id", c.ID}
}

// memberOf is a container as its sandbox knows it.
type memberOf struct {
	c         *Container
	lifecycle *Lifecycle
	stopper   *Stopper
}

func (m memberOf) ID() string       { return m.c.ID }
func (m memberOf) CreatedAt() int64 { return m.c.createdAt }

func (m memberOf) Status() *runtimeapi.ContainerStatus {
	if m.c.Record().State == Creating {
		return nil
	}
	return containerStatus(m.c)
}

func (m memberOf) End(ctx context.Context) error             { return m.stopper.end(ctx, m.c) }
func (m memberOf) Remove(ctx context.Context) error          { return m.stopper.removeOne(ctx, m.c) }
func (m memberOf) Exited(ctx context.Context, e keeper.Exit) { m.lifecycle.exited(ctx, m.c, e) }

func (m memberOf) Abandon(ctx context.Context, exits []keeper.Exit) error {
	return m.lifecycle.abandon(ctx, m.c, exits)
}

func (m memberOf) AwaitTold(ctx context.Context) {
	if s := m.c.Record().State; s != Starting && s != Running {
		m.c.waitTold(ctx)
	}
}

func (m memberOf) ResumeStart(ctx context.Context, k host.Keeper) error {
	if m.c.Record().State != Starting {
		return nil
	}
	if err := m.c.op.Lock(ctx); err != nil {
		return err
	}
	defer m.c.op.Unlock()
	return m.lifecycle.resumeStart(ctx, m.c, k)
}

// logPath is "" when the container has no log.
func logPath(sb *runtimeapi.PodSandboxConfig, c *runtimeapi.ContainerConfig) string {
	if sb.GetLogDirectory() == "" || c.GetLogPath() == "" {
		return ""
	}
	return filepath.Join(sb.GetLogDirectory(), c.GetLogPath())
}

// Containers are the containers of all sandboxes: their table, and what is done to them, each a part that knows only
// those above it.
type Containers struct {
	host *host.Host

	Table       *Table
	external    *external
	told        *told
	bundles     *bundles
	spec        *specifier
	Updater     *Updater
	recipe      *recipe
	Creator     *Creator
	Lifecycle   *Lifecycle
	Stopper     *Stopper
	Execs       *Execs
	Checkpoints *Checkpoints
	Meter       *Meter
}

// New puts the parts together.
func New(t *Table, h *events.Hub, l *background.Tasks) *Containers {
	m, ps := t.host, t.pods
	cs := &Containers{host: m, Table: t, external: &external{m}, told: &told{m}, Checkpoints: &Checkpoints{m}, Meter: &Meter{m}}
	cs.bundles = &bundles{m, cs.external}
	cs.spec = &specifier{host: m, pods: ps, table: t, bundles: cs.bundles, told: cs.told}
	cs.Updater = &Updater{m, t, cs.external, cs.told}
	cs.recipe = &recipe{cs.bundles, cs.spec}
	cs.Lifecycle = &Lifecycle{m, h, l, ps, t, cs.external, cs.told, cs.recipe, cs.Updater}
	cs.Stopper = &Stopper{m, h, l, ps, t, cs.external, cs.told, cs.recipe, cs.Lifecycle}
	cs.Creator = &Creator{m, h, ps, t, cs.recipe, cs.told, cs.Updater, cs.Lifecycle, cs.Stopper}
	cs.Execs = &Execs{host: m, pods: ps, table: t, external: cs.external}
	return cs
}
