package cri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-node/berth/cri/keeper"

	"github.com/berth-node/berth/cri/host"
	"github.com/berth-node/berth/cri/sandbox"
	"github.com/berth-node/berth/cri/snapshot"
	"github.com/berth-node/berth/internal/filetree"
)

// recover makes of what the last run left behind something that holds: it reads the records, finishes or undoes what
// was going on, takes live keepers up again, and removes what no record explains.
func (r *core) recover(ctx context.Context) error {
	if err := r.host.Snaps.Clean(ctx); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.log.Warn("what is left of snapshots is not removed, the next start tries again", "error", err)
	}
	r.load()
	var g errgroup.Group
	g.SetLimit(4)
	if r.cfg.OneAtATime {
		g.SetLimit(1)
	}
	until := time.Now().Add(patience)
	for _, sb := range r.pods.Table.ByID.All(sandbox.Newest) {
		g.Go(func() error {
			err := r.recoverSandbox(ctx, sb, until)
			if err != nil && ctx.Err() == nil {
				// Not a reason not to run: this is one pod.
				r.log.Error("sandbox is not recovered", append(sb.LogAttrs(), "error", err)...)
			}
			return nil
		})
	}
	_ = g.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	return r.collect(ctx)
}

// patience is how long all keepers together may take for their first answer, and brief what each may at least. Who
// takes longer is asked in the background: none of them keeps the others from being asked, nor the start from going on.
const (
	patience = 5 * time.Second
	brief    = 500 * time.Millisecond
)

// recoverSandbox brings one sandbox and its containers to a state that holds.
func (r *core) recoverSandbox(ctx context.Context, sb *sandbox.Sandbox, until time.Time) error {
	rec := sb.Record()
	switch rec.State {
	case sandbox.Creating:
		return r.undoSandbox(ctx, sb)
	case sandbox.Ready:
		if rec.BootID == r.host.BootID {
			asking, cancel := context.WithTimeout(ctx, max(time.Until(until), brief))
			defer cancel()
			k, err := r.host.Keepers.Open(asking, sb.ID, r.host.Paths.Sandbox(sb.ID).Keeper())
			if !errors.Is(err, keeper.ErrGone) {
				if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
					err = keeper.ErrSilent
				}
				return r.resume(ctx, asking, sb, k, err)
			}
		}
		r.log.Warn("sandbox has ended while nobody looked", sb.LogAttrs()...)
		r.pods.Table.Note(sb, func(r *sandbox.Record) { r.State = sandbox.NotReady })
	}
	return r.settle(ctx, sb)
}

// undoSandbox takes back a sandbox that was never ready. Nobody was told its ID.
func (r *core) undoSandbox(ctx context.Context, sb *sandbox.Sandbox) error {
	if err := r.host.Steps.Undo(ctx, sb, "recover sandbox", r.pods.Builder.Plan(sb)); err != nil {
		r.log.Warn("half-made sandbox cannot be taken back yet", "sandbox", sb.ID, "error", err)
		r.pods.Table.Note(sb, func(r *sandbox.Record) { r.State = sandbox.NotReady })
		return nil
	}
	return r.pods.Table.Drop(sb)
}

// resume goes on with a sandbox whose keeper lives, or is not known to be dead. What ended meanwhile is recorded before
// anybody can ask.
func (r *core) resume(ctx, asking context.Context, sb *sandbox.Sandbox, k host.Keeper, silent error) error {
	var exits []keeper.Exit
	var err error
	if k == nil {
		exits, err = keeper.ReadExits(r.host.Paths.Sandbox(sb.ID).Keeper())
	} else {
		exits, err = k.Exits()
	}
	if err != nil {
		r.log.Warn("exit records are damaged", append(sb.LogAttrs(), "error", err)...)
	}
	r.ctrs.Resume(ctx, sb, exits)
	if silent == nil {
		sb.SetKeeper(k)
		silent = r.pods.Watcher.ResumeStarts(asking, sb, k)
		r.pods.Joiner.Join(sb, k) // it may have been killed before that
	}
	if silent != nil {
		r.pods.Watcher.Suspect(sb, silent)
	}
	r.pods.Watcher.Watch(sb)
	return nil
}

// settle ends the containers of a sandbox that is not ready any more and takes down what it still has in the kernel.
func (r *core) settle(ctx context.Context, sb *sandbox.Sandbox) error {
	exits, err := keeper.ReadExits(r.host.Paths.Sandbox(sb.ID).Keeper())
	if err != nil {
		r.log.Warn("exit records cannot be read", "sandbox", sb.ID, "error", err)
	}
	if err := r.ctrs.Settle(ctx, sb, exits); err != nil {
		return err
	}
	if err := r.host.Steps.Undo(ctx, sb, "recover sandbox", r.pods.Builder.Plan(sb)[1:]); err != nil {
		r.log.Warn("sandbox is not taken down completely, its stop tries again", "sandbox", sb.ID, "error", err)
		return nil
	}
	sb.SetTornDown()
	return nil
}

// collect removes what has our marks and no record: our directories, and what they say was made.
func (r *core) collect(ctx context.Context) error {
	m := r.host
	live := r.pods.Quarantine.Sandboxes()
	for _, sb := range r.pods.Table.ByID.All(sandbox.Newest) {
		live = append(live, sb.ID)
	}
	var errs []error
	errs = append(errs, orphans(m.Paths.Sandboxes(), func(id string) bool {
		_, ok := r.pods.Table.ByID.Exact(id)
		return ok || r.pods.Quarantine.Sandbox(id)
	}, func(id string) error {
		r.log.Warn("sandbox without a record is removed", "sandbox", id)
		return host.RemoveOrphanSandbox(ctx, m, id)
	}))
	errs = append(errs, orphans(m.Paths.Containers(), func(id string) bool {
		_, ok := r.ctrs.Table.ByID.Exact(id)
		return ok || r.pods.Quarantine.Container(id)
	}, func(id string) error {
		r.log.Warn("container without a record is removed", "id", id)
		return host.RemoveOrphanContainer(ctx, m, id)
	}))
	for _, snap := range m.Snaps.List() {
		owner, _, _ := strings.Cut(snap.Key, "-") // views of a container are ID-number
		if _, ok := r.ctrs.Table.ByID.Exact(owner); snap.Kind == snapshot.KindLayer || ok || r.pods.Quarantine.Container(owner) {
			continue
		}
		if err := m.Snaps.Remove(ctx, snap.Key); err != nil {
			errs = append(errs, err)
		}
	}
	errs = append(errs, m.Net.Collect(ctx, live), orphans(m.Paths.Checkpoints(), func(string) bool { return false }, r.removeCheckpoint))
	if err := errors.Join(errs...); err != nil {
		// Not a reason not to run: what is left now is tried again by the next start.
		r.log.Warn("leftovers are not removed completely", "error", err)
	}
	return nil
}

// orphans calls remove for every entry of dir that is not known.
func orphans(dir string, known func(string) bool, remove func(string) error) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var errs []error
	for _, e := range entries {
		if !known(e.Name()) {
			errs = append(errs, remove(e.Name()))
		}
	}
	return errors.Join(errs...)
}

// purge removes every pod, and everything in the root and run directory and in the machine that was made for them.
func (co *core) purge(ctx context.Context) error {
	var errs []error
	var g errgroup.Group
	g.SetLimit(8)
	logs := filepath.Clean(co.cfg.LogDir) + "/"
	for _, sb := range co.pods.Table.ByID.All(sandbox.Newest) {
		g.Go(func() error {
			if err := co.pods.Remove(ctx, sb.ID); err != nil {
				return err
			}
			// Others may have logs in the same directory.
			if dir := filepath.Clean(sb.Config.GetLogDirectory()); co.cfg.LogDir != "" && strings.HasPrefix(dir, logs) {
				return filetree.RemoveAll(ctx, dir)
			}
			return nil
		})
	}
	for _, id := range co.pods.Quarantine.Sandboxes() {
		g.Go(func() error { return co.pods.Quarantine.RemoveSandbox(ctx, id) })
	}
	if err := g.Wait(); err != nil {
		// Directories of pods that still run must stay.
		return fmt.Errorf("purge: %w", err)
	}
	errs = append(errs, co.host.Net.Purge(ctx), co.host.Cgroups.Remove(ctx, co.host.DefaultParent()), co.close())
	l := co.host.Paths
	for _, dir := range l.Volatile() {
		errs = append(errs, co.host.Mounts.Unmount(dir))
	}
	for _, dir := range append(l.Volatile(), l.Content(), l.Snapshots(), l.Checkpoints(), l.DB(), l.DB()+".new", l.DB()+".damaged", l.RecordsCopy(), l.RecordsCopy()+".new", l.NetNS(), l.IPAM(), l.CNICache(), l.CNIRecords()) {
		errs = append(errs, filetree.RemoveAll(ctx, dir))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("purge: %w", err)
	}
	return nil
}

func isClosedListener(err error) bool { return errors.Is(err, net.ErrClosed) }
