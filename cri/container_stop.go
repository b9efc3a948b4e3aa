package cri

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/image"
	"github.com/berth-node/berth/cri/keeper"
)

// killWait is how long a killed container may take to end: a process in an uninterruptible system call ends when that does.
const killWait = 2 * time.Minute

// noImage is for plans that are only undone.
var noImage image.Image

// stop asks the container to end and kills it when grace is over. Of several stops at once, the shortest grace counts.
func (cs *containers) stop(ctx context.Context, id string, grace time.Duration) error {
	c, err := cs.byID.get(id)
	if err != nil {
		return nil // the CRI wants stopping what is not there to succeed
	}
	if err := cs.stopOne(ctx, c, grace); err != nil {
		return fmt.Errorf("stop container: %w", err)
	}
	return nil
}

// end kills a container.
func (cs *containers) end(ctx context.Context, c *container) error { return cs.stopOne(ctx, c, 0) }

func (cs *containers) stopOne(ctx context.Context, c *container, grace time.Duration) error {
	// Only to let a start come to its end; while waiting for the exit, others may stop it too.
	if err := c.op.lock(ctx); err != nil {
		return err
	}
	rec := c.record()
	c.op.unlock()
	if rec.State != containerRunning {
		return nil
	}
	if grace > 0 {
		if c.signalled.CompareAndSwap(false, true) {
			if err := cs.signal(ctx, c, unix.Signal(rec.StopSignal)); err != nil {
				return err
			}
		}
		if ended, err := wait(ctx, c, grace); ended || err != nil {
			return err
		}
	}
	if err := cs.signal(ctx, c, unix.SIGKILL); err != nil {
		return err
	}
	ended, err := wait(ctx, c, killWait)
	if err == nil && !ended {
		err = fmt.Errorf("it has not ended %v after SIGKILL", killWait)
	}
	return err
}

func wait(ctx context.Context, c *container, d time.Duration) (ended bool, err error) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-c.done:
		return true, nil
	case <-t.C:
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// signal sends sig to the container's first process, if it is still there. The keeper does it, because it is the one who reaps
// the process and so knows that its number is not another's yet.
func (cs *containers) signal(ctx context.Context, c *container, sig unix.Signal) error {
	if c.sandbox.silenced() {
		return cs.signalSilent(ctx, c, sig)
	}
	k, err := c.sandbox.keeperOf()
	if err == nil && !cs.signalExternal(ctx, c, sig) {
		err = cs.pods.heard(c.sandbox, k.Signal(ctx, c.id, sig))
	}
	if errors.Is(err, errUnavailable) {
		return cs.signalSilent(ctx, c, sig)
	}
	if errors.Is(err, keeper.ErrNotFound) {
		return nil
	}
	select {
	case <-c.done: // by another stop, of the sandbox, say, which has taken the keeper down since
		return nil
	default:
		return err
	}
}

// keeperOf is the keeper, whatever the state of the sandbox.
func (sb *sandbox) keeperOf() (podKeeper, error) {
	sb.mu.RLock()
	defer sb.mu.RUnlock()
	if sb.keeper == nil {
		return nil, fmt.Errorf("%w: sandbox %s has no keeper", errPrecondition, sb.id)
	}
	return sb.keeper, nil
}

// remove kills a container if it runs and removes all of it but its log.
func (cs *containers) remove(ctx context.Context, id string) error {
	c, err := cs.byID.get(id)
	if err != nil {
		return nil // the CRI wants removing what is not there to succeed
	}
	if err := cs.removeOne(ctx, c); err != nil {
		return fmt.Errorf("remove container: %w", err)
	}
	return nil
}

func (cs *containers) removeOne(ctx context.Context, c *container) error {
	if err := cs.end(ctx, c); err != nil {
		return err
	}
	c.waitTold(ctx)
	defer cs.hold()()
	if err := c.op.lock(ctx); err != nil {
		return err
	}
	defer c.op.unlock()
	if c.removed() {
		return nil
	}
	if s := c.record().State; s == containerRunning || s == containerStarting {
		return fmt.Errorf("%w: it was started meanwhile", errPrecondition)
	}
	if err := cs.undo(ctx, c, "remove container", cs.plan(c, noImage)); err != nil {
		return err
	}
	// Before the record, so that no exit is left that nothing explains.
	if k, err := c.sandbox.keeperOf(); err == nil {
		if err := k.Forget(c.id); err != nil {
			return err
		}
	}
	cs.point("remove container", "record", "delete", "before")
	cs.tellGone(ctx, c)
	if err := cs.drop(c); err != nil {
		return err
	}
	cs.events.container(runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT, c)
	return nil
}
