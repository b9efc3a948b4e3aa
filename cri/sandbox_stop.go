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
	if err != nil { // the CRI wants stopping what is not there to succeed
		return p.removeUnreadable(ctx, id)
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
	ended := g.Wait()
	if ended != nil && !sb.silenced() {
		return fmt.Errorf("stop sandbox: %w", ended)
	}
	for _, c := range sb.containers() {
		if s := c.record().State; s != containerStarting && s != containerRunning {
			c.waitTold(ctx)
		}
	}
	p.tellStopped(ctx, sb)
	if err := p.undo(ctx, sb, "stop sandbox", p.plan(sb)[1:]); err != nil {
		return fmt.Errorf("stop sandbox: %w", errors.Join(ended, err))
	}
	// Those of a keeper that could not be asked, which have ended with it: the group of all is gone.
	exits, _ := keeper.ReadExits(p.paths.keeper(sb.id)) // of one that is damaged nothing is told here
	for _, c := range sb.containers() {
		if err := p.containers.abandon(ctx, c, exits); err != nil {
			return fmt.Errorf("stop sandbox: %w", err)
		}
	}
	sb.mu.Lock()
	sb.torndown, sb.trouble = true, nil
	sb.mu.Unlock()
	p.events.sandbox(runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, sb)
	return nil
}

// remove stops a sandbox and removes it with all its containers.
func (p *pods) remove(ctx context.Context, id string) error {
	sb, err := p.byID.get(id)
	if err != nil { // the CRI wants removing what is not there to succeed
		return p.removeUnreadable(ctx, id)
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
	if err := p.clearUp(ctx, sb, ""); err != nil {
		return fmt.Errorf("remove sandbox: %w", err)
	}
	defer p.hold()()
	p.tellRemoved(ctx, sb)
	if err := p.undo(ctx, sb, "remove sandbox", p.plan(sb)[:1]); err != nil {
		return fmt.Errorf("remove sandbox: %w", err)
	}
	p.point("remove sandbox", "record", "delete", "before")
	if err := p.drop(sb); err != nil {
		return fmt.Errorf("remove sandbox: %w", err)
	}
	p.events.sandbox(runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT, sb)
	return nil
}

// watch hears of the ends of the sandbox's containers in the background.
func (p *pods) watch(sb *sandbox) {
	sb.mu.RLock()
	k := sb.keeper
	sb.mu.RUnlock()
	p.life.start(func(ctx context.Context) { p.attend(ctx, sb, k) })
}

// keeperLost ends a sandbox whose keeper was killed by somebody else. Its containers have nobody any more to copy their
// output or to reap them, and the namespaces they would be restarted in are going.
func (p *pods) keeperLost(ctx context.Context, sb *sandbox, cause error) {
	sb.mu.RLock()
	k := sb.keeper
	sb.mu.RUnlock()
	exits := p.exitsOf(sb, k)
	// Before the sandbox is locked: a stop that is under way has locked it, and waits for the ends of these.
	p.abandonAll(ctx, sb, exits)
	if err := sb.op.lock(ctx); err != nil {
		return
	}
	defer sb.op.unlock()
	if sb.state() != sandboxReady {
		return
	}
	p.log.Error("keeper has ended, its pod ends with it", append(sb.logAttrs(), "error", cause)...)
	sb.takeKeeper()
	p.note(sb, func(r *sandboxRecord) { r.State = sandboxNotReady })
	p.abandonAll(ctx, sb, exits) // those that were made meanwhile
	p.events.sandbox(runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, sb)
}

// abandonAll ends the containers of a sandbox whose keeper is gone.
func (p *pods) abandonAll(ctx context.Context, sb *sandbox, exits []keeper.Exit) {
	for _, c := range sb.containers() {
		if err := p.containers.abandon(ctx, c, exits); err != nil && !errors.Is(err, context.Canceled) {
			p.log.Error("container of a lost sandbox is not ended", "container", c.id, "error", err)
		}
	}
}

func (p *pods) exitsOf(sb *sandbox, k podKeeper) []keeper.Exit {
	if k == nil {
		exits, _ := keeper.ReadExits(p.paths.keeper(sb.id))
		return exits
	}
	exits, _ := k.Exits()
	return exits
}
