package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/fault"
	"github.com/berth-node/berth/cri/keeper"
	"github.com/berth-node/berth/cri/step"

	"github.com/berth-node/berth/cri/background"
	"github.com/berth-node/berth/cri/events"
	"github.com/berth-node/berth/cri/host"
	"github.com/berth-node/berth/cri/sandbox"
	"github.com/containerd/nri/pkg/api"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Lifecycle starts containers, and takes note of their ends.
type Lifecycle struct {
	host     *host.Host
	events   *events.Hub
	tasks    *background.Tasks
	pods     *sandbox.Sandboxes
	table    *Table
	external *external
	told     *told
	recipe   *recipe
	updater  *Updater
}

// Start runs the process of a created container. It goes on when the caller gives up: a start that was cut off half-way
// would leave a container of which nobody knows whether it runs.
func (l *Lifecycle) Start(ctx context.Context, id string) error {
	c, err := l.table.ByID.Get(id)
	if err != nil {
		return err
	}
	if err := c.op.Lock(ctx); err != nil {
		return err
	}
	done := make(chan error, 1)
	began := l.tasks.Start(func(context.Context) {
		defer c.op.Unlock()
		defer l.host.Plugins.Hold()()
		done <- l.startLocked(context.WithoutCancel(ctx), c)
	})
	if !began {
		c.op.Unlock()
		return fmt.Errorf("start container: %w: the server is ending", fault.ErrPrecondition)
	}
	select {
	case err = <-done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("start container: %w", err)
	}
	return nil
}

func (l *Lifecycle) startLocked(ctx context.Context, c *Container) error {
	if c.removed() {
		return fmt.Errorf("container %q: %w", c.ID, fault.ErrNotFound)
	}
	if s := c.Record().State; s != Created {
		return fmt.Errorf("%w: container %q is in %s state", fault.ErrPrecondition, c.ID, s.CRI())
	}
	k, err := c.Sandbox.Live()
	if err != nil {
		return err
	}
	if err := l.host.Plugins.StartContainer(ctx, l.told.of(c)); err != nil {
		return err
	}
	if err := l.table.update(c, func(r *Record) { r.State = Starting }); err != nil {
		return err
	}
	if err := l.external.prepareRuntime(c); err != nil {
		return err
	}
	l.host.Steps.Point("start container", "do", "run", "before")
	run := l.ordinary(c, k, l.keeperContainer(c))
	pid, err := k.Run(ctx, run)
	run.Plain.Release()
	l.host.Steps.Point("start container", "do", "run", "after")
	if errors.Is(err, keeper.ErrSilent) {
		// It may run yet, and who wants it to is told that it does not. When the keeper answers again, that is made
		// true.
		c.calledOff.Store(true)
		return l.pods.Watcher.Heard(c.Sandbox, err)
	}
	if err != nil {
		l.finish(ctx, c, outcome{code: codeStartError, reason: reasonStartError, message: err.Error(), at: time.Now()})
		return err
	}
	l.table.note(c, func(r *Record) {
		r.State, r.Pid, r.StartedAt = Running, pid, time.Now().UnixNano()
	})
	l.events.Publish(runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, c.ID, c.Sandbox.Statuses)
	l.host.Plugins.Started(ctx, l.told.of(c))
	return nil
}

func (l *Lifecycle) keeperContainer(c *Container) keeper.Container {
	rec := c.Record()
	return keeper.Container{
		ID: c.ID, Bundle: string(l.host.Paths.Container(c.ID)), StateDir: l.host.Paths.State(),
		LogPath: rec.LogPath, LogMaxSize: l.host.LogMaxSize, LogMaxFiles: l.host.LogMaxFiles,
		TTY: c.Config.GetTty(), Stdin: c.Config.GetStdin(), StdinOnce: c.Config.GetStdinOnce(),
		MemoryCgroup: l.host.Cgroups.MemoryDir(rec.Cgroup), Runtime: l.external.keeperRuntime(c),
		PIDNamespace: rec.PIDNamespace, Traces: rec.Traces, Freezer: l.host.Cgroups.FreezerDir(rec.Cgroup),
	}
}

// outcome is how a container ended.
type outcome struct {
	code            int32
	reason, message string
	started, at     time.Time
}

func outcomeOf(e keeper.Exit) outcome {
	o := outcome{code: int32(e.Code), reason: reasonError, started: e.StartedAt, at: e.FinishedAt}
	switch {
	case e.OOMKilled:
		o.reason = reasonOOMKilled
	case e.Code == 0:
		o.reason = reasonCompleted
	}
	return o
}

// exited takes note of an exit the keeper tells of. It tells each one again after a restart.
func (l *Lifecycle) exited(ctx context.Context, c *Container, e keeper.Exit) {
	// Waits for the start of the container, if that is what is going on.
	if err := c.op.Lock(ctx); err != nil {
		return
	}
	defer c.op.Unlock()
	if s := c.Record().State; s == Exited || s == Creating || c.removed() {
		return
	}
	o := outcomeOf(e)
	c.mu.RLock()
	o.message = c.evicted
	c.mu.RUnlock()
	// To its end, also when the server ends meanwhile.
	l.finish(context.WithoutCancel(ctx), c, o)
}

// finish records the end of a container, tells of it, and takes down what only a running container needs. The caller
// holds op.
func (l *Lifecycle) finish(ctx context.Context, c *Container, o outcome) {
	l.host.Steps.Point("exit container", "record", "exited", "before")
	l.table.note(c, func(r *Record) {
		r.State, r.Pid, r.ExitCode, r.Reason, r.Message, r.FinishedAt = Exited, 0, o.code, o.reason, o.message, o.at.UnixNano()
		// Of a short one the end may be known before its start was noted here.
		if (r.StartedAt == 0 || r.StartedAt > r.FinishedAt) && !o.started.IsZero() {
			r.StartedAt = o.started.UnixNano()
		}
	})
	l.events.Publish(runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, c.ID, c.Sandbox.Statuses)
	if err := l.sweep(ctx, c); err != nil {
		l.host.Log.Error("remains of a container are not removed", append(c.LogAttrs(), "error", err)...)
	}
	l.poststop(ctx, c)
	l.tellExited(c)
	close(c.Done)
}

// sweep removes what an exited container does not need any more. Processes it left in the pod's or the host's PID
// namespace end with its cgroup.
func (l *Lifecycle) sweep(ctx context.Context, c *Container) error {
	p := l.recipe.plan(c, noImage)
	return errors.Join(
		l.external.deleteExternal(ctx, c),
		l.host.Steps.Undo(ctx, c, "exit container", step.Plan{{{Name: "cgroup", Do: nil, Undo: func(ctx context.Context) error { return l.host.Cgroups.Remove(ctx, c.Record().Cgroup) }}}}),
		l.host.Steps.Undo(ctx, c, "exit container", p[2:4]), // the mounts
	)
}

// abandon ends a container whose keeper is gone. What became of it its exit record says, if there is one.
func (l *Lifecycle) abandon(ctx context.Context, c *Container, exits []keeper.Exit) error {
	if err := c.op.Lock(ctx); err != nil {
		return err
	}
	defer c.op.Unlock()
	if s := c.Record().State; s != Starting && s != Running {
		return nil
	}
	o := outcome{code: codeUnknown, reason: reasonUnknown, message: "the keeper of the pod has ended", at: time.Now()}
	for _, e := range exits {
		if e.ContainerID == c.ID {
			o = outcomeOf(e)
		}
	}
	l.finish(ctx, c, o)
	return nil
}

// poststop runs the hooks that are to be run when all of a container has ended. The launcher runs all others; it is not
// there any more. A container's end does not depend on them, as the OCI specification has it, and the record says
// whether they are still to be run.
func (l *Lifecycle) poststop(ctx context.Context, c *Container) {
	if !c.Record().Poststop {
		return
	}
	if err := l.runPoststop(ctx, c); err != nil {
		l.host.Log.Warn("hooks of an ended container have failed", append(c.LogAttrs(), "error", err)...)
	}
	l.table.note(c, func(r *Record) { r.Poststop = false })
}

func (l *Lifecycle) runPoststop(ctx context.Context, c *Container) error {
	spec, err := host.ReadSpec(l.host.Paths.Container(c.ID).Spec())
	if err != nil {
		return err
	}
	if !hasPoststop(spec) {
		return nil
	}
	state, err := json.Marshal(specs.State{
		Version: specs.Version, ID: c.ID, Status: specs.StateStopped, Bundle: string(l.host.Paths.Container(c.ID)), Annotations: spec.Annotations,
	})
	if err != nil {
		return fmt.Errorf("encode state: %w", err)
	}
	var errs []error
	for _, h := range spec.Hooks.Poststop {
		errs = append(errs, runHook(ctx, h, state))
	}
	return errors.Join(errs...)
}

// tellExited tells that a container has ended, however it did. Nobody waits for the plugins but who removes the
// container.
func (l *Lifecycle) tellExited(c *Container) {
	if !l.host.Plugins.Active() {
		return
	}
	told := make(chan struct{})
	c.mu.Lock()
	c.exitTold = told
	c.mu.Unlock()
	began := l.tasks.Start(func(ctx context.Context) {
		var others []*api.ContainerUpdate
		func() {
			defer close(told)
			defer l.host.Plugins.Hold()()
			others = l.host.Plugins.Stopped(ctx, l.told.of(c))
		}()
		l.updater.ApplyUpdates(ctx, others)
	})
	if !began {
		close(told)
	}
}

// resumeStart asks for the start again: a keeper that was asked before answers with what became of it. The caller holds
// op.
func (l *Lifecycle) resumeStart(ctx context.Context, c *Container, k host.Keeper) error {
	if c.Record().State != Starting {
		return nil
	}
	err := l.external.prepareRuntime(c)
	pid := 0
	if err == nil {
		pid, err = k.Run(ctx, l.keeperContainer(c))
	}
	switch {
	case err == nil:
	case ctx.Err() != nil, errors.Is(err, keeper.ErrSilent), errors.Is(err, keeper.ErrGone):
		return err
	default:
		l.finish(context.WithoutCancel(ctx), c, outcome{code: codeStartError, reason: reasonStartError, message: err.Error(), at: time.Now()})
		return nil
	}
	l.table.note(c, func(r *Record) { r.State, r.Pid, r.StartedAt = Running, pid, time.Now().UnixNano() })
	if c.calledOff.Load() {
		return k.Signal(ctx, c.ID, unix.SIGKILL)
	}
	return nil
}
