package container

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/fault"

	"github.com/berth-node/berth/cri/background"
	"github.com/berth-node/berth/cri/events"
	"github.com/berth-node/berth/cri/host"
	"github.com/berth-node/berth/cri/keeper"
	"github.com/berth-node/berth/cri/sandbox"
)

// killWait is how long a killed container may take to end: a process in an uninterruptible system call ends when that
// does.
const killWait = 2 * time.Minute

// Stopper ends containers and removes them.
type Stopper struct {
	host      *host.Host
	events    *events.Hub
	tasks     *background.Tasks
	pods      *sandbox.Sandboxes
	table     *Table
	external  *external
	told      *told
	recipe    *recipe
	lifecycle *Lifecycle
}

// Stop asks the container to end and kills it when grace is over. Of several stops at once, the shortest grace counts.
func (s *Stopper) Stop(ctx context.Context, id string, grace time.Duration) error {
	c, err := s.table.ByID.Get(id)
	if err != nil {
		return nil // the CRI wants stopping what is not there to succeed
	}
	if err := s.stopOne(ctx, c, grace); err != nil {
		return fmt.Errorf("stop container: %w", err)
	}
	return nil
}

// end kills a container.
func (s *Stopper) end(ctx context.Context, c *Container) error { return s.stopOne(ctx, c, 0) }

func (s *Stopper) stopOne(ctx context.Context, c *Container, grace time.Duration) error {
	// Only to let a start come to its end; while waiting for the exit, others may stop it too.
	if err := c.op.Lock(ctx); err != nil {
		return err
	}
	rec := c.Record()
	c.op.Unlock()
	if rec.State != Running {
		return nil
	}
	if grace > 0 {
		if c.signalled.CompareAndSwap(false, true) {
			if err := s.signal(ctx, c, unix.Signal(rec.StopSignal)); err != nil {
				return err
			}
		}
		if ended, err := wait(ctx, c, grace); ended || err != nil {
			return err
		}
	}
	if err := s.signal(ctx, c, unix.SIGKILL); err != nil {
		return err
	}
	ended, err := wait(ctx, c, killWait)
	if err == nil && !ended {
		err = fmt.Errorf("it has not ended %v after SIGKILL", killWait)
	}
	return err
}

func wait(ctx context.Context, c *Container, d time.Duration) (ended bool, err error) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-c.Done:
		return true, nil
	case <-t.C:
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// signal sends sig to the container's first process, if it is still there. The keeper does it, because it is the one
// who reaps the process and so knows that its number is not another's yet.
func (s *Stopper) signal(ctx context.Context, c *Container, sig unix.Signal) error {
	if c.Sandbox.Silenced() {
		return s.signalSilent(ctx, c, sig)
	}
	k, err := c.Sandbox.KeeperOf()
	if err == nil && !s.external.signalExternal(ctx, c, sig) {
		err = s.pods.Watcher.Heard(c.Sandbox, k.Signal(ctx, c.ID, sig))
	}
	if errors.Is(err, fault.ErrUnavailable) {
		return s.signalSilent(ctx, c, sig)
	}
	if errors.Is(err, keeper.ErrNotFound) {
		return nil
	}
	select {
	case <-c.Done: // by another stop, of the sandbox, say, which has taken the keeper down since
		return nil
	default:
		return err
	}
}

// Remove kills a container if it runs and removes all of it but its log.
func (s *Stopper) Remove(ctx context.Context, id string) error {
	c, err := s.table.ByID.Get(id)
	if err != nil {
		return nil // the CRI wants removing what is not there to succeed
	}
	if err := s.removeOne(ctx, c); err != nil {
		return fmt.Errorf("remove container: %w", err)
	}
	return nil
}

func (s *Stopper) removeOne(ctx context.Context, c *Container) error {
	if err := s.end(ctx, c); err != nil {
		return err
	}
	c.waitTold(ctx)
	defer s.host.Plugins.Hold()()
	if err := c.op.Lock(ctx); err != nil {
		return err
	}
	defer c.op.Unlock()
	if c.removed() {
		return nil
	}
	if s := c.Record().State; s == Running || s == Starting {
		return fmt.Errorf("%w: it was started meanwhile", fault.ErrPrecondition)
	}
	if err := s.host.Steps.Undo(ctx, c, "remove container", s.recipe.plan(c, noImage)); err != nil {
		return err
	}
	// Before the record, so that no exit is left that nothing explains.
	if k, err := c.Sandbox.KeeperOf(); err == nil {
		if err := k.Forget(c.ID); err != nil {
			return err
		}
	}
	s.host.Steps.Point("remove container", "record", "delete", "before")
	s.host.Plugins.Removed(ctx, s.told.of(c))
	if err := s.table.drop(c); err != nil {
		return err
	}
	s.events.Publish(runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT, c.ID, c.Sandbox.Statuses)
	return nil
}

// signalSilent sends a signal to a container whose keeper cannot be asked. Its end, which nobody else tells, is waited
// for.
func (s *Stopper) signalSilent(ctx context.Context, c *Container, sig unix.Signal) error {
	dir := s.host.Paths.Sandbox(c.Sandbox.ID).Keeper()
	if sig == unix.SIGKILL {
		s.pods.Joiner.Thaw(c.Sandbox)
		ctx, cancel := context.WithTimeout(ctx, killWait)
		defer cancel()
		err := s.host.Cgroups.Remove(ctx, c.Record().Cgroup) // with all that is in it
		if err == nil {
			s.ended(ctx, c)
		}
		return err
	}
	if err := keeper.Signal(dir, c.ID, sig); err != nil && !errors.Is(err, keeper.ErrNotFound) {
		return err
	}
	s.tasks.Start(func(ctx context.Context) {
		if err := keeper.AwaitEnd(ctx, dir, c.ID); err == nil && c.Sandbox.Troubled() != nil {
			s.ended(ctx, c)
		}
	})
	return nil
}

// ended finishes a container that has ended while its keeper could not be asked. Where the keeper has told how, that
// holds.
func (s *Stopper) ended(ctx context.Context, c *Container) {
	if err := c.op.Lock(ctx); err != nil {
		return
	}
	defer c.op.Unlock()
	if c.Record().State != Running || c.removed() {
		return
	}
	o := outcome{
		code: 128 + int32(unix.SIGKILL), reason: reasonError, message: "it was ended while the keeper of its pod did not answer", at: time.Now(),
	}
	// Of one that is damaged nothing is told here.
	exits, _ := keeper.ReadExits(s.host.Paths.Sandbox(c.Sandbox.ID).Keeper())
	for _, e := range exits {
		if e.ContainerID == c.ID {
			o = outcomeOf(e)
		}
	}
	s.lifecycle.finish(context.WithoutCancel(ctx), c, o)
}
