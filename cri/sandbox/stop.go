package sandbox

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/host"
	"github.com/berth-node/berth/cri/keeper"
)

// Stop kills the containers of a sandbox and takes down all it has but its directory and record.
func (p *Sandboxes) Stop(ctx context.Context, id string) error {
	sb, err := p.Table.ByID.Get(id)
	if err != nil { // the CRI wants stopping what is not there to succeed
		return p.Quarantine.RemoveSandbox(ctx, id)
	}
	if err := sb.op.Lock(ctx); err != nil {
		return err
	}
	defer sb.op.Unlock()
	return p.stopLocked(ctx, sb)
}

func (p *Sandboxes) stopLocked(ctx context.Context, sb *Sandbox) error {
	sb.mu.RLock()
	state, done := sb.rec.State, sb.torndown || sb.gone
	sb.mu.RUnlock()
	if done {
		return nil
	}
	// From here on no container of it is started any more.
	if state != NotReady {
		p.Table.Note(sb, func(r *Record) { r.State = NotReady })
	}
	var g errgroup.Group
	for _, m := range sb.Members() {
		g.Go(func() error { return m.End(ctx) })
	}
	ended := g.Wait()
	if ended != nil && !sb.Silenced() {
		return fmt.Errorf("stop sandbox: %w", ended)
	}
	for _, m := range sb.Members() {
		m.AwaitTold(ctx)
	}
	p.tellStopped(ctx, sb)
	if err := p.host.Steps.Undo(ctx, sb, "stop sandbox", p.Builder.Plan(sb)[1:]); err != nil {
		return fmt.Errorf("stop sandbox: %w", errors.Join(ended, err))
	}
	// Those of a keeper that could not be asked, which have ended with it: the group of all is gone.
	exits, _ := keeper.ReadExits(p.host.Paths.Sandbox(sb.ID).Keeper()) // of one that is damaged nothing is told here
	for _, m := range sb.Members() {
		if err := m.Abandon(ctx, exits); err != nil {
			return fmt.Errorf("stop sandbox: %w", err)
		}
	}
	sb.mu.Lock()
	sb.torndown, sb.trouble = true, nil
	sb.mu.Unlock()
	p.events.Publish(runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, sb.ID, sb.Statuses)
	return nil
}

// Remove stops a sandbox and removes it with all its containers.
func (p *Sandboxes) Remove(ctx context.Context, id string) error {
	sb, err := p.Table.ByID.Get(id)
	if err != nil { // the CRI wants removing what is not there to succeed
		return p.Quarantine.RemoveSandbox(ctx, id)
	}
	if err := sb.op.Lock(ctx); err != nil {
		return err
	}
	defer sb.op.Unlock()
	if err := p.stopLocked(ctx, sb); err != nil {
		return err
	}
	sb.mu.RLock()
	gone := sb.gone
	sb.mu.RUnlock()
	if gone {
		return nil
	}
	for _, m := range sb.Members() {
		if err := m.Remove(ctx); err != nil {
			return fmt.Errorf("remove sandbox: %w", err)
		}
	}
	if err := p.Quarantine.ClearUp(ctx, sb.ID, ""); err != nil {
		return fmt.Errorf("remove sandbox: %w", err)
	}
	defer p.host.Plugins.Hold()()
	p.host.Plugins.PodRemoved(ctx, sb.ForPlugins)
	if err := p.host.Steps.Undo(ctx, sb, "remove sandbox", p.Builder.Plan(sb)[:1]); err != nil {
		return fmt.Errorf("remove sandbox: %w", err)
	}
	p.host.Steps.Point("remove sandbox", "record", "delete", "before")
	if err := p.Table.Drop(sb); err != nil {
		return fmt.Errorf("remove sandbox: %w", err)
	}
	p.events.Publish(runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT, sb.ID, sb.Statuses)
	return nil
}

// Watch hears of the ends of the sandbox's containers in the background.
func (w *Watcher) Watch(sb *Sandbox) {
	sb.mu.RLock()
	k := sb.keeper
	sb.mu.RUnlock()
	w.tasks.Start(func(ctx context.Context) { w.attend(ctx, sb, k) })
}

// keeperLost ends a sandbox whose keeper was killed by somebody else. Its containers have nobody any more to copy their
// output or to reap them, and the namespaces they would be restarted in are going.
func (w *Watcher) keeperLost(ctx context.Context, sb *Sandbox, cause error) {
	sb.mu.RLock()
	k := sb.keeper
	sb.mu.RUnlock()
	exits := w.exitsOf(sb, k)
	// Before the sandbox is locked: a stop that is under way has locked it, and waits for the ends of these.
	w.abandonAll(ctx, sb, exits)
	if err := sb.op.Lock(ctx); err != nil {
		return
	}
	defer sb.op.Unlock()
	if sb.State() != Ready {
		return
	}
	w.host.Log.Error("keeper has ended, its pod ends with it", append(sb.LogAttrs(), "error", cause)...)
	sb.takeKeeper()
	w.table.Note(sb, func(r *Record) { r.State = NotReady })
	w.abandonAll(ctx, sb, exits) // those that were made meanwhile
	w.events.Publish(runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, sb.ID, sb.Statuses)
}

// abandonAll ends the containers of a sandbox whose keeper is gone.
func (w *Watcher) abandonAll(ctx context.Context, sb *Sandbox, exits []keeper.Exit) {
	for _, m := range sb.Members() {
		if err := m.Abandon(ctx, exits); err != nil && !errors.Is(err, context.Canceled) {
			w.host.Log.Error("container of a lost sandbox is not ended", "container", m.ID(), "error", err)
		}
	}
}

func (w *Watcher) exitsOf(sb *Sandbox, k host.Keeper) []keeper.Exit {
	if k == nil {
		exits, _ := keeper.ReadExits(w.host.Paths.Sandbox(sb.ID).Keeper())
		return exits
	}
	exits, _ := k.Exits()
	return exits
}

// tellStopped tells once that a sandbox is stopping: its containers have ended, and it is still there.
func (p *Sandboxes) tellStopped(ctx context.Context, sb *Sandbox) {
	defer p.host.Plugins.Hold()()
	sb.mu.Lock()
	told := sb.stopTold
	sb.stopTold = true
	sb.mu.Unlock()
	if told {
		return
	}
	p.host.Plugins.PodStopped(ctx, sb.ForPlugins)
}
