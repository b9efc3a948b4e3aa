package cri

import (
	"context"
	"errors"
	"fmt"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/keeper"
)

// start runs the process of a created container. It goes on when the caller gives up: a start that was cut off half-way would
// leave a container of which nobody knows whether it runs.
func (cs *containers) start(ctx context.Context, id string) error {
	c, err := cs.byID.get(id)
	if err != nil {
		return err
	}
	if err := c.op.lock(ctx); err != nil {
		return err
	}
	done := make(chan error, 1)
	began := cs.life.start(func(context.Context) {
		defer c.op.unlock()
		defer cs.hold()()
		done <- cs.startLocked(context.WithoutCancel(ctx), c)
	})
	if !began {
		c.op.unlock()
		return fmt.Errorf("start container: %w: the server is ending", errPrecondition)
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

func (cs *containers) startLocked(ctx context.Context, c *container) error {
	if c.removed() {
		return fmt.Errorf("container %q: %w", c.id, errNotFound)
	}
	if s := c.record().State; s != containerCreated {
		return fmt.Errorf("%w: container %q is in %s state", errPrecondition, c.id, s.cri())
	}
	k, err := c.sandbox.live()
	if err != nil {
		return err
	}
	if err := cs.askToStart(ctx, c); err != nil {
		return err
	}
	if err := cs.update(c, func(r *containerRecord) { r.State = containerStarting }); err != nil {
		return err
	}
	if err := cs.prepareRuntime(c); err != nil {
		return err
	}
	cs.point("start container", "do", "run", "before")
	pid, err := k.Run(ctx, cs.keeperContainer(c))
	cs.point("start container", "do", "run", "after")
	if errors.Is(err, keeper.ErrSilent) {
		// It may run yet, and who wants it to is told that it does not. When the keeper answers again, that is made true.
		c.calledOff.Store(true)
		return cs.pods.heard(c.sandbox, err)
	}
	if err != nil {
		cs.finish(ctx, c, outcome{code: codeStartError, reason: reasonStartError, message: err.Error(), at: time.Now()})
		return err
	}
	cs.note(c, func(r *containerRecord) {
		r.State, r.Pid, r.StartedAt = containerRunning, pid, time.Now().UnixNano()
	})
	cs.events.container(runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, c)
	cs.tellStarted(ctx, c)
	return nil
}

func (cs *containers) keeperContainer(c *container) keeper.Container {
	rec := c.record()
	return keeper.Container{
		ID: c.id, Bundle: cs.paths.container(c.id), StateDir: cs.paths.state(),
		LogPath: rec.LogPath, LogMaxSize: cs.logMaxSize, LogMaxFiles: cs.logMaxFiles,
		TTY: c.cfg.GetTty(), Stdin: c.cfg.GetStdin(), StdinOnce: c.cfg.GetStdinOnce(),
		MemoryCgroup: cs.cgroups.MemoryDir(rec.Cgroup), Runtime: cs.keeperRuntime(c),
		PIDNamespace: rec.PIDNamespace, Traces: rec.Traces, Freezer: cs.cgroups.FreezerDir(rec.Cgroup),
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
func (cs *containers) exited(ctx context.Context, sb *sandbox, e keeper.Exit) {
	c, err := cs.byID.get(e.ContainerID)
	if err != nil {
		if err := cs.pods.clearUp(ctx, sb, e.ContainerID); err != nil {
			cs.log.Warn("container without a readable record is not removed", append(sb.logAttrs(), "error", err)...)
		}
		return
	}
	if c.sandbox != sb {
		return
	}
	// Waits for the start of the container, if that is what is going on.
	if err := c.op.lock(ctx); err != nil {
		return
	}
	defer c.op.unlock()
	if s := c.record().State; s == containerExited || s == containerCreating || c.removed() {
		return
	}
	o := outcomeOf(e)
	c.mu.RLock()
	o.message = c.evicted
	c.mu.RUnlock()
	// To its end, also when the server ends meanwhile.
	cs.finish(context.WithoutCancel(ctx), c, o)
}

// finish records the end of a container, tells of it, and takes down what only a running container needs. The caller holds op.
func (cs *containers) finish(ctx context.Context, c *container, o outcome) {
	cs.point("exit container", "record", "exited", "before")
	cs.note(c, func(r *containerRecord) {
		r.State, r.Pid, r.ExitCode, r.Reason, r.Message, r.FinishedAt = containerExited, 0, o.code, o.reason, o.message, o.at.UnixNano()
		// Of a short one the end may be known before its start was noted here.
		if (r.StartedAt == 0 || r.StartedAt > r.FinishedAt) && !o.started.IsZero() {
			r.StartedAt = o.started.UnixNano()
		}
	})
	cs.events.container(runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, c)
	if err := cs.sweep(ctx, c); err != nil {
		cs.log.Error("remains of a container are not removed", append(c.logAttrs(), "error", err)...)
	}
	cs.poststop(ctx, c)
	cs.tellExited(c)
	close(c.done)
}

// sweep removes what an exited container does not need any more. Processes it left in the pod's or the host's PID namespace
// end with its cgroup.
func (cs *containers) sweep(ctx context.Context, c *container) error {
	p := cs.plan(c, noImage)
	return errors.Join(
		cs.deleteExternal(ctx, c),
		cs.undo(ctx, c, "exit container", plan{{{"cgroup", nil, func(ctx context.Context) error { return cs.cgroups.Remove(ctx, c.record().Cgroup) }}}}),
		cs.undo(ctx, c, "exit container", p[2:4]), // the mounts
	)
}

// abandon ends a container whose keeper is gone. What became of it its exit record says, if there is one.
func (cs *containers) abandon(ctx context.Context, c *container, exits []keeper.Exit) error {
	if err := c.op.lock(ctx); err != nil {
		return err
	}
	defer c.op.unlock()
	if s := c.record().State; s != containerStarting && s != containerRunning {
		return nil
	}
	o := outcome{code: codeUnknown, reason: reasonUnknown, message: "the keeper of the pod has ended", at: time.Now()}
	for _, e := range exits {
		if e.ContainerID == c.id {
			o = outcomeOf(e)
		}
	}
	cs.finish(ctx, c, o)
	return nil
}
