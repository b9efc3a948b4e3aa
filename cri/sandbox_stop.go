package cri

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/keeper"
)

// stop kills the containers of a sandbox and takes down all it has but its directory and record.
func (p *pods) stop(ctx context.Context, id string) error {
	sb, err := p.byID.get(id)
	if err != nil {
		return nil //nolint:nilerr // the CRI wants stopping what is not there to succeed
	}
	if err := sb.op.lock(ctx); err != nil {
		return err
	}
	defer sb.op.unlock()
	return p.stopLocked(ctx, sb)
}

func (p *pods) stopLocked(ctx context.Context, sb *sandbox) error {
	sb.mu.RLock()
	state, done := sb.rec.State, sb.torndown || sb.gone
	sb.mu.RUnlock()
	if done {
		return nil
	}
	// From here on no container of it is started any more.
	if state != sandboxNotReady {
		p.note(sb, func(r *sandboxRecord) { r.State = sandboxNotReady })
	}
	var g errgroup.Group
	for _, c := range sb.containers() {
		g.Go(func() error { return p.containers.end(ctx, c) })
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("stop sandbox: %w", err)
	}
	for _, c := range sb.containers() {
		c.waitTold(ctx)
	}
	p.tellStopped(ctx, sb)
	if err := p.undo(ctx, "stop sandbox", p.plan(sb)[1:]); err != nil {
		return fmt.Errorf("stop sandbox: %w", err)
	}
	sb.mu.Lock()
	sb.torndown = true
	sb.mu.Unlock()
	p.events.sandbox(runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, sb)
	return nil
}

// remove stops a sandbox and removes it with all its containers.
func (p *pods) remove(ctx context.Context, id string) error {
	sb, err := p.byID.get(id)
	if err != nil {
		return nil //nolint:nilerr // the CRI wants removing what is not there to succeed
	}
	if err := sb.op.lock(ctx); err != nil {
		return err
	}
	defer sb.op.unlock()
	if err := p.stopLocked(ctx, sb); err != nil {
		return err
	}
	sb.mu.RLock()
	gone := sb.gone
	sb.mu.RUnlock()
	if gone {
		return nil
	}
	for _, c := range sb.containers() {
		if err := p.containers.removeOne(ctx, c); err != nil {
			return fmt.Errorf("remove sandbox: %w", err)
		}
	}
	defer p.hold()()
	p.tellRemoved(ctx, sb)
	if err := p.undo(ctx, "remove sandbox", p.plan(sb)[:1]); err != nil {
		return fmt.Errorf("remove sandbox: %w", err)
	}
	p.point("remove sandbox", "record", "delete", "before")
	if err := p.drop(sb); err != nil {
		return fmt.Errorf("remove sandbox: %w", err)
	}
	p.events.sandbox(runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT, sb)
	return nil
}

// watch hears of the ends of the sandbox's containers, until the keeper ends.
func (p *pods) watch(sb *sandbox) {
	k, err := sb.live()
	if err != nil {
		return
	}
	p.life.start(func(ctx context.Context) {
		err := k.Watch(ctx, func(e keeper.Exit) {
			// Not in here: an exit has to wait for the container's start, and the next one must not wait for this one.
			p.life.start(func(ctx context.Context) { p.containers.exited(ctx, sb, e) })
		})
		if ctx.Err() != nil || sb.state() != sandboxReady {
			return
		}
		p.keeperLost(ctx, sb, err)
	})
}

// keeperLost ends a sandbox whose keeper was killed by somebody else. Its containers have nobody any more to copy their
// output or to reap them, and the namespaces they would be restarted in are going.
func (p *pods) keeperLost(ctx context.Context, sb *sandbox, cause error) {
	if err := sb.op.lock(ctx); err != nil {
		return
	}
	defer sb.op.unlock()
	if sb.state() != sandboxReady {
		return
	}
	meta := sb.cfg.GetMetadata()
	p.log.Error("keeper has ended, its pod ends with it", "pod", meta.GetNamespace()+"/"+meta.GetName(), "uid", meta.GetUid(), "error", cause)
	k := sb.takeKeeper()
	p.note(sb, func(r *sandboxRecord) { r.State = sandboxNotReady })
	for _, c := range sb.containers() {
		if err := p.containers.abandon(ctx, c, exitsOf(k)); err != nil && !errors.Is(err, context.Canceled) {
			p.log.Error("container of a lost sandbox is not ended", "container", c.id, "error", err)
		}
	}
	p.events.sandbox(runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, sb)
}

func exitsOf(k podKeeper) []keeper.Exit {
	if k == nil {
		return nil
	}
	exits, _ := k.Exits()
	return exits
}
