package cri

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/keeper"
)

// A keeper can live and not answer: it was stopped, its cgroup was frozen, or this process is out of descriptors. What is not known is
// not held against the pod. It stays what it was, clients are told of its trouble, what needs no keeper goes on, and the keeper is asked
// until it answers or has ended. To end such a pod works all the same.

// trouble is why a sandbox's keeper cannot be asked.
type trouble struct {
	err  error
	over chan struct{} // closed when it has ended, one way or the other
}

// The delays between two tries to ask a keeper. A try itself lasts as long as the keeper is silent; only one that fails by itself has
// to be repeated.
const (
	askAgainFirst = 100 * time.Millisecond
	askAgainMost  = 30 * time.Second
)

// troubled returns why the keeper cannot be asked; nil when it can, as far as is known.
func (sb *sandbox) troubled() error {
	sb.mu.RLock()
	defer sb.mu.RUnlock()
	if sb.trouble == nil || sb.rec.State != sandboxReady {
		return nil
	}
	return sb.trouble.err
}

// silenced is troubled, whatever the state of the sandbox.
func (sb *sandbox) silenced() bool {
	sb.mu.RLock()
	defer sb.mu.RUnlock()
	return sb.trouble != nil
}

// heard looks at what a question to the keeper came to, and returns it.
func (p *pods) heard(sb *sandbox, err error) error {
	if errors.Is(err, keeper.ErrSilent) {
		p.suspect(sb, err)
		return fmt.Errorf("%w: %w", errUnavailable, err)
	}
	return err
}

// suspect takes note that the keeper of a sandbox cannot be asked, and begins to ask it until it can.
func (p *pods) suspect(sb *sandbox, cause error) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.trouble != nil {
		return
	}
	t := &trouble{cause, make(chan struct{})}
	sb.trouble = t
	p.log.Error("keeper cannot be asked; its pod is left as it is, and cannot be managed until it can", append(sb.logAttrs(), "error", cause)...)
	began := p.life.start(func(ctx context.Context) {
		p.tellTrouble(sb)
		p.reach(ctx, sb, t)
	})
	if !began {
		close(t.over)
	}
}

// reach asks for a keeper until it answers, its sandbox is not wanted any more, or the server ends.
func (p *pods) reach(ctx context.Context, sb *sandbox, t *trouble) {
	defer close(t.over)
	for wait := askAgainFirst; ; wait = min(2*wait, askAgainMost) {
		k, err := p.keepers.Await(ctx, sb.id, p.paths.keeper(sb.id))
		if err == nil {
			err = p.regain(ctx, sb, k)
		}
		switch {
		case ctx.Err() != nil:
			return
		case sb.state() != sandboxReady:
			sb.endTrouble(nil)
			return
		case err == nil:
			p.log.Info("keeper answers again", sb.logAttrs()...)
			sb.endTrouble(nil)
			p.tellTrouble(sb)
			return
		case errors.Is(err, keeper.ErrGone):
			sb.endTrouble(nil)
			p.keeperLost(ctx, sb, err)
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

// tellTrouble makes clients look at the sandbox. The CRI has no event of its own for this: what counts is the state that comes with it.
func (p *pods) tellTrouble(sb *sandbox) {
	p.events.sandbox(runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, sb)
}

// endTrouble ends the trouble, or gives it another cause.
func (sb *sandbox) endTrouble(cause error) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if cause == nil {
		sb.trouble = nil
	} else if sb.trouble != nil {
		sb.trouble = &trouble{cause, sb.trouble.over}
	}
}

// regain goes on with a sandbox whose keeper answers again.
func (p *pods) regain(ctx context.Context, sb *sandbox, k podKeeper) error {
	if err := sb.op.lock(ctx); err != nil {
		return err
	}
	defer sb.op.unlock()
	if sb.state() != sandboxReady {
		return nil
	}
	if _, err := sb.keeperOf(); err != nil {
		sb.setKeeper(k)
		p.join(sb, k)
	}
	return p.resumeStarts(ctx, sb, k)
}

// attend hears of the ends of the sandbox's containers from k, nil where none has answered yet, until the keeper ends.
func (p *pods) attend(ctx context.Context, sb *sandbox, k podKeeper) {
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
			p.life.start(func(ctx context.Context) { p.containers.exited(ctx, sb, e) })
		})
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, keeper.ErrGone):
			p.keeperLost(ctx, sb, err)
			return
		case sb.state() == sandboxReady:
			p.suspect(sb, err)
		default: // it is being stopped, and the ends of its containers are waited for
			select {
			case <-ctx.Done():
			case <-time.After(askAgainFirst):
			}
		}
	}
}

// signalSilent sends a signal to a container whose keeper cannot be asked. Its end, which nobody else tells, is waited for.
func (cs *containers) signalSilent(ctx context.Context, c *container, sig unix.Signal) error {
	dir := cs.paths.keeper(c.sandbox.id)
	if sig == unix.SIGKILL {
		cs.pods.thaw(c.sandbox)
		ctx, cancel := context.WithTimeout(ctx, killWait)
		defer cancel()
		err := cs.cgroups.Remove(ctx, c.record().Cgroup) // with all that is in it
		if err == nil {
			cs.ended(ctx, c)
		}
		return err
	}
	if err := keeper.Signal(dir, c.id, sig); err != nil && !errors.Is(err, keeper.ErrNotFound) {
		return err
	}
	cs.life.start(func(ctx context.Context) {
		if err := keeper.AwaitEnd(ctx, dir, c.id); err == nil && c.sandbox.troubled() != nil {
			cs.ended(ctx, c)
		}
	})
	return nil
}

// ended finishes a container that has ended while its keeper could not be asked. Where the keeper has told how, that holds.
func (cs *containers) ended(ctx context.Context, c *container) {
	if err := c.op.lock(ctx); err != nil {
		return
	}
	defer c.op.unlock()
	if c.record().State != containerRunning || c.removed() {
		return
	}
	o := outcome{
		code: 128 + int32(unix.SIGKILL), reason: reasonError, message: "it was ended while the keeper of its pod did not answer", at: time.Now(),
	}
	exits, _ := keeper.ReadExits(cs.paths.keeper(c.sandbox.id)) // of one that is damaged nothing is told here
	for _, e := range exits {
		if e.ContainerID == c.id {
			o = outcomeOf(e)
		}
	}
	cs.finish(context.WithoutCancel(ctx), c, o)
}
