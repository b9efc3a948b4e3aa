package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/background"
	"github.com/berth-node/berth/cri/events"
	"github.com/berth-node/berth/cri/fault"
	"github.com/berth-node/berth/cri/host"
	"github.com/berth-node/berth/cri/keeper"
	"github.com/berth-node/berth/cri/quarantine"
)

// A keeper can live and not answer: it was stopped, its cgroup was frozen, or this process is out of descriptors. What
// is not known is not held against the pod. It stays what it was, clients are told of its trouble, what needs no keeper
// goes on, and the keeper is asked until it answers or has ended. To end such a pod works all the same.

// Watcher hears of the ends of keepers and of what runs in their sandboxes, and asks those that do not answer.
type Watcher struct {
	host       *host.Host
	events     *events.Hub
	tasks      *background.Tasks
	table      *Table
	joiner     *Joiner
	quarantine *quarantine.Quarantine
}

// trouble is why a sandbox's keeper cannot be asked.
type trouble struct {
	err  error
	over chan struct{} // closed when it has ended, one way or the other
}

// The delays between two tries to ask a keeper. A try itself lasts as long as the keeper is silent; only one that fails
// by itself has to be repeated.
const (
	askAgainFirst = 100 * time.Millisecond
	askAgainMost  = 30 * time.Second
)

// Troubled returns why the keeper cannot be asked; nil when it can, as far as is known.
func (sb *Sandbox) Troubled() error {
	sb.mu.RLock()
	defer sb.mu.RUnlock()
	if sb.trouble == nil || sb.rec.State != Ready {
		return nil
	}
	return sb.trouble.err
}

// Silenced is troubled, whatever the state of the sandbox.
func (sb *Sandbox) Silenced() bool {
	sb.mu.RLock()
	defer sb.mu.RUnlock()
	return sb.trouble != nil
}

// Heard looks at what a question to the keeper came to, and returns it.
func (w *Watcher) Heard(sb *Sandbox, err error) error {
	if errors.Is(err, keeper.ErrSilent) {
		w.Suspect(sb, err)
		return fmt.Errorf("%w: %w", fault.ErrUnavailable, err)
	}
	return err
}

// Suspect takes note that the keeper of a sandbox cannot be asked, and begins to ask it until it can.
func (w *Watcher) Suspect(sb *Sandbox, cause error) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.trouble != nil {
		return
	}
	t := &trouble{cause, make(chan struct{})}
	sb.trouble = t
	w.host.Log.Error("keeper cannot be asked; its pod is left as it is, and cannot be managed until it can", append(sb.LogAttrs(), "error", cause)...)
	began := w.tasks.Start(func(ctx context.Context) {
		w.tellTrouble(sb)
		w.reach(ctx, sb, t)
	})
	if !began {
		close(t.over)
	}
}

// reach asks for a keeper until it answers, its sandbox is not wanted any more, or the server ends.
func (w *Watcher) reach(ctx context.Context, sb *Sandbox, t *trouble) {
	defer close(t.over)
	for wait := askAgainFirst; ; wait = min(2*wait, askAgainMost) {
		k, err := w.host.Keepers.Await(ctx, sb.ID, w.host.Paths.Sandbox(sb.ID).Keeper())
		if err == nil {
			err = w.regain(ctx, sb, k)
		}
		switch {
		case ctx.Err() != nil:
			return
		case sb.State() != Ready:
			sb.endTrouble(nil)
			return
		case err == nil:
			w.host.Log.Info("keeper answers again", sb.LogAttrs()...)
			sb.endTrouble(nil)
			w.tellTrouble(sb)
			return
		case errors.Is(err, keeper.ErrGone):
			sb.endTrouble(nil)
			w.keeperLost(ctx, sb, err)
			return
		}
		sb.endTrouble(err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// tellTrouble makes clients look at the sandbox. The CRI has no event of its own for this: what counts is the state
// that comes with it.
func (w *Watcher) tellTrouble(sb *Sandbox) {
	w.events.Publish(runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, sb.ID, sb.Statuses)
}

// endTrouble ends the trouble, or gives it another cause.
func (sb *Sandbox) endTrouble(cause error) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if cause == nil {
		sb.trouble = nil
	} else if sb.trouble != nil {
		sb.trouble = &trouble{cause, sb.trouble.over}
	}
}

// regain goes on with a sandbox whose keeper answers again.
func (w *Watcher) regain(ctx context.Context, sb *Sandbox, k host.Keeper) error {
	if err := sb.op.Lock(ctx); err != nil {
		return err
	}
	defer sb.op.Unlock()
	if sb.State() != Ready {
		return nil
	}
	if _, err := sb.KeeperOf(); err != nil {
		sb.SetKeeper(k)
		w.joiner.Join(sb, k)
	}
	return w.ResumeStarts(ctx, sb, k)
}

// attend hears of the ends of the sandbox's containers from k, nil where none has answered yet, until the keeper ends.
func (w *Watcher) attend(ctx context.Context, sb *Sandbox, k host.Keeper) {
	for ctx.Err() == nil {
		sb.mu.RLock()
		t, done := sb.trouble, sb.torndown || sb.gone
		if k == nil {
			k = sb.keeper
		}
		sb.mu.RUnlock()
		if done || t == nil && k == nil {
			return
		}
		if t != nil {
			select {
			case <-ctx.Done():
			case <-t.over:
			}
			continue
		}
		err := k.Watch(ctx, func(e keeper.Exit) {
			// Not in here: an exit has to wait for the container's start, and the next one must not wait for this one.
			w.tasks.Start(func(ctx context.Context) { w.exited(ctx, sb, e) })
		})
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, keeper.ErrGone):
			w.keeperLost(ctx, sb, err)
			return
		case sb.State() == Ready:
			w.Suspect(sb, err)
		default: // it is being stopped, and the ends of its containers are waited for
			select {
			case <-ctx.Done():
			case <-time.After(askAgainFirst):
			}
		}
	}
}

// ResumeStarts asks for the starts again of which it is not known what became of them. It fails when the keeper does
// not answer.
func (w *Watcher) ResumeStarts(ctx context.Context, sb *Sandbox, k host.Keeper) error {
	for _, m := range sb.Members() {
		if err := m.ResumeStart(ctx, k); err != nil {
			return err
		}
	}
	return nil
}

// exited hands an exit to the container whose it is.
func (w *Watcher) exited(ctx context.Context, sb *Sandbox, e keeper.Exit) {
	if m := sb.member(e.ContainerID); m != nil {
		m.Exited(ctx, e)
		return
	}
	if err := w.quarantine.ClearUp(ctx, sb.ID, e.ContainerID); err != nil {
		w.host.Log.Warn("container without a readable record is not removed", append(sb.LogAttrs(), "error", err)...)
	}
}
