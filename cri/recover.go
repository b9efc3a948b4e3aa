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
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/keeper"
	"github.com/berth-node/berth/cri/oci"
	"github.com/berth-node/berth/cri/snapshot"
	"github.com/berth-node/berth/internal/filetree"
)

// recover makes of what the last run left behind something that holds: it reads the records, finishes or undoes what was
// going on, takes live keepers up again, and removes what no record explains.
func (s *Server) recover(ctx context.Context) error {
	if err := s.machine.snaps.Clean(ctx); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.log.Warn("what is left of snapshots is not removed, the next start tries again", "error", err)
	}
	s.load()
	var g errgroup.Group
	g.SetLimit(4)
	if s.cfg.OneAtATime {
		g.SetLimit(1)
	}
	until := time.Now().Add(patience)
	for _, sb := range s.pods.byID.all(newestSandbox) {
		g.Go(func() error {
			err := s.recoverSandbox(ctx, sb, until)
			if err != nil && ctx.Err() == nil {
				// Not a reason not to run: this is one pod.
				s.log.Error("sandbox is not recovered", append(sb.logAttrs(), "error", err)...)
			}
			return nil
		})
	}
	_ = g.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.collect(ctx)
}

// patience is how long all keepers together may take for their first answer, and brief what each may at least. Who takes longer is asked
// in the background: none of them keeps the others from being asked, nor the start from going on.
const (
	patience = 5 * time.Second
	brief    = 500 * time.Millisecond
)

// recoverSandbox brings one sandbox and its containers to a state that holds.
func (s *Server) recoverSandbox(ctx context.Context, sb *sandbox, until time.Time) error {
	rec := sb.record()
	switch rec.State {
	case sandboxCreating:
		return s.undoSandbox(ctx, sb)
	case sandboxReady:
		if rec.BootID == s.machine.bootID {
			asking, cancel := context.WithTimeout(ctx, max(time.Until(until), brief))
			defer cancel()
			k, err := s.machine.keepers.Open(asking, sb.id, s.machine.paths.keeper(sb.id))
			if !errors.Is(err, keeper.ErrGone) {
				if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
					err = keeper.ErrSilent
				}
				return s.resume(ctx, asking, sb, k, err)
			}
		}
		s.log.Warn("sandbox has ended while nobody looked", sb.logAttrs()...)
		s.pods.note(sb, func(r *sandboxRecord) { r.State = sandboxNotReady })
	}
	return s.settle(ctx, sb)
}

// undoSandbox takes back a sandbox that was never ready. Nobody was told its ID.
func (s *Server) undoSandbox(ctx context.Context, sb *sandbox) error {
	if err := s.pods.undo(ctx, sb, "recover sandbox", s.pods.plan(sb)); err != nil {
		s.log.Warn("half-made sandbox cannot be taken back yet", "sandbox", sb.id, "error", err)
		s.pods.note(sb, func(r *sandboxRecord) { r.State = sandboxNotReady })
		return nil
	}
	return s.pods.drop(sb)
}

// resume goes on with a sandbox whose keeper lives, or is not known to be dead. What ended meanwhile is recorded before anybody can
// ask.
func (s *Server) resume(ctx, asking context.Context, sb *sandbox, k podKeeper, silent error) error {
	var exits []keeper.Exit
	var err error
	if k == nil {
		exits, err = keeper.ReadExits(s.machine.paths.keeper(sb.id))
	} else {
		exits, err = k.Exits()
	}
	if err != nil {
		s.log.Warn("exit records are damaged", append(sb.logAttrs(), "error", err)...)
	}
	ended := map[string]keeper.Exit{}
	for _, e := range exits {
		ended[e.ContainerID] = e
	}
	for _, c := range sb.containers() {
		state := c.record().State
		exit, gone := ended[c.id]
		switch {
		case state == containerCreating:
			s.retract(ctx, c)
		case state == containerExited:
			s.resweep(ctx, c)
		case gone && state != containerCreated:
			s.ctrs.finish(ctx, c, outcomeOf(exit))
		}
	}
	if silent == nil {
		sb.setKeeper(k)
		silent = s.pods.resumeStarts(asking, sb, k)
		s.pods.join(sb, k) // it may have been killed before that
	}
	if silent != nil {
		s.pods.suspect(sb, silent)
	}
	s.pods.watch(sb)
	return nil
}

// resumeStarts asks for the starts again of which it is not known what became of them. It fails when the keeper does not answer.
func (p *pods) resumeStarts(ctx context.Context, sb *sandbox, k podKeeper) error {
	for _, c := range sb.containers() {
		if c.record().State != containerStarting {
			continue
		}
		if err := c.op.lock(ctx); err != nil {
			return err
		}
		err := p.containers.resumeStart(ctx, c, k)
		c.op.unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// resumeStart asks for the start again: a keeper that was asked before answers with what became of it. The caller holds op.
func (cs *containers) resumeStart(ctx context.Context, c *container, k podKeeper) error {
	if c.record().State != containerStarting {
		return nil
	}
	err := cs.prepareRuntime(c)
	pid := 0
	if err == nil {
		pid, err = k.Run(ctx, cs.keeperContainer(c))
	}
	switch {
	case err == nil:
	case ctx.Err() != nil, errors.Is(err, keeper.ErrSilent), errors.Is(err, keeper.ErrGone):
		return err
	default:
		cs.finish(context.WithoutCancel(ctx), c, outcome{code: codeStartError, reason: reasonStartError, message: err.Error(), at: time.Now()})
		return nil
	}
	cs.note(c, func(r *containerRecord) { r.State, r.Pid, r.StartedAt = containerRunning, pid, time.Now().UnixNano() })
	if c.calledOff.Load() {
		return k.Signal(ctx, c.id, unix.SIGKILL)
	}
	return nil
}

// retract takes back a container that a crash has left half made. What cannot be taken back now is a container that its pod's end
// takes with it.
func (s *Server) retract(ctx context.Context, c *container) {
	if err := s.undoContainer(ctx, c); err != nil {
		s.log.Warn("half-made container cannot be taken back yet", append(c.logAttrs(), "error", err)...)
	}
}

// settle ends the containers of a sandbox that is not ready any more and takes down what it still has in the kernel.
func (s *Server) settle(ctx context.Context, sb *sandbox) error {
	exits, err := keeper.ReadExits(s.machine.paths.keeper(sb.id))
	if err != nil {
		s.log.Warn("exit records cannot be read", "sandbox", sb.id, "error", err)
	}
	for _, c := range sb.containers() {
		switch c.record().State {
		case containerCreating:
			s.retract(ctx, c)
		case containerExited, containerCreated:
			s.resweep(ctx, c)
		default:
			if err := s.ctrs.abandon(ctx, c, exits); err != nil {
				return err
			}
		}
	}
	if err := s.pods.undo(ctx, sb, "recover sandbox", s.pods.plan(sb)[1:]); err != nil {
		s.log.Warn("sandbox is not taken down completely, its stop tries again", "sandbox", sb.id, "error", err)
		return nil
	}
	sb.mu.Lock()
	sb.torndown = true
	sb.mu.Unlock()
	return nil
}

func (s *Server) undoContainer(ctx context.Context, c *container) error {
	if err := s.ctrs.undo(ctx, c, "recover container", s.ctrs.plan(c, noImage)); err != nil {
		return fmt.Errorf("take back half-made container %s: %w", c.id, err)
	}
	return s.ctrs.drop(c)
}

// resweep repeats what follows an exit, which a crash may have cut off.
func (s *Server) resweep(ctx context.Context, c *container) {
	if err := s.ctrs.sweep(ctx, c); err != nil {
		s.log.Warn("remains of a container are not removed", append(c.logAttrs(), "error", err)...)
	}
	if c.record().State == containerExited {
		s.ctrs.poststop(ctx, c)
	}
}

// collect removes what has our marks and no record: our directories, and what they say was made.
func (s *Server) collect(ctx context.Context) error {
	m := s.machine
	live := s.pods.unreadable.sandboxes()
	for _, sb := range s.pods.byID.all(newestSandbox) {
		live = append(live, sb.id)
	}
	var errs []error
	errs = append(errs, orphans(m.paths.sandboxes(), func(id string) bool { _, ok := s.pods.byID.exact(id); return ok || s.pods.unreadable.sandbox(id) }, func(id string) error {
		s.log.Warn("sandbox without a record is removed", "sandbox", id)
		return removeOrphanSandbox(ctx, m, id)
	}))
	errs = append(errs, orphans(m.paths.containers(), func(id string) bool { _, ok := s.ctrs.byID.exact(id); return ok || s.pods.unreadable.container(id) }, func(id string) error {
		s.log.Warn("container without a record is removed", "container", id)
		return removeOrphanContainer(ctx, m, id)
	}))
	for _, snap := range m.snaps.List() {
		owner, _, _ := strings.Cut(snap.Key, "-") // views of a container are ID-number
		if _, ok := s.ctrs.byID.exact(owner); snap.Kind == snapshot.KindLayer || ok || s.pods.unreadable.container(owner) {
			continue
		}
		if err := m.snaps.Remove(ctx, snap.Key); err != nil {
			errs = append(errs, err)
		}
	}
	errs = append(errs, m.net.Collect(ctx, live), orphans(m.paths.checkpoints(), func(string) bool { return false }, s.removeCheckpoint))
	if err := errors.Join(errs...); err != nil {
		// Not a reason not to run: what is left now is tried again by the next start.
		s.log.Warn("leftovers are not removed completely", "error", err)
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

func removeOrphanSandbox(ctx context.Context, m *machine, id string) error {
	if group := m.orphanGroup(id); group != "" {
		m.cgroups.Thaw(group) // what is frozen does not die
	}
	if err := m.keepers.Kill(m.paths.keeper(id)); err != nil {
		return err
	}
	for _, pin := range []string{m.paths.shm(id), m.paths.userns(id)} {
		if err := m.mounts.unmount(pin); err != nil {
			return err
		}
	}
	if group := m.orphanGroup(id); group != "" {
		if err := m.cgroups.Remove(ctx, group); err != nil {
			return err
		}
	}
	return removeSandboxDir(m.paths, id)
}

// orphanGroup is the cgroup of a sandbox without a record; "" when its directory does not say.
func (m *machine) orphanGroup(id string) string {
	group, err := os.ReadFile(filepath.Join(m.paths.sandbox(id), "cgroup"))
	if err != nil || !strings.Contains(string(group), id) {
		return ""
	}
	return string(group)
}

func removeOrphanContainer(ctx context.Context, m *machine, id string) error {
	if err := m.deleteOrphan(ctx, id); err != nil {
		return err
	}
	if spec, err := readSpec(m.paths.spec(id)); err == nil && strings.Contains(spec.Linux.CgroupsPath, id) {
		if err := m.cgroups.Remove(ctx, oci.KernelPath(spec.Linux.CgroupsPath)); err != nil {
			return err
		}
	}
	views, err := os.ReadDir(m.paths.imageMounts(id))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, v := range views {
		if err := m.mounts.unmount(filepath.Join(m.paths.imageMounts(id), v.Name())); err != nil {
			return err
		}
	}
	if err := m.mounts.unmount(m.paths.rootfs(id)); err != nil {
		return err
	}
	return removeContainerDir(m.paths, id)
}

// Purge removes every pod, and everything in the root and run directory and in the machine that was made for them.
func (s *Server) Purge(ctx context.Context) error {
	var errs []error
	var g errgroup.Group
	g.SetLimit(8)
	logs := filepath.Clean(s.cfg.LogDir) + "/"
	for _, sb := range s.pods.byID.all(newestSandbox) {
		g.Go(func() error {
			if err := s.pods.remove(ctx, sb.id); err != nil {
				return err
			}
			// Others may have logs in the same directory.
			if dir := filepath.Clean(sb.cfg.GetLogDirectory()); s.cfg.LogDir != "" && strings.HasPrefix(dir, logs) {
				return filetree.RemoveAll(ctx, dir)
			}
			return nil
		})
	}
	for _, id := range s.pods.unreadable.sandboxes() {
		g.Go(func() error { return s.pods.removeUnreadable(ctx, id) })
	}
	if err := g.Wait(); err != nil {
		// Directories of pods that still run must stay.
		return fmt.Errorf("purge: %w", err)
	}
	errs = append(errs, s.machine.net.Purge(ctx), s.machine.cgroups.Remove(ctx, s.machine.defaultParent()), s.Close())
	l := s.machine.paths
	for _, dir := range l.volatile() {
		errs = append(errs, s.machine.mounts.unmount(dir))
	}
	for _, dir := range append(l.volatile(), l.content(), l.snapshots(), l.checkpoints(), l.db(), l.db()+".new", l.db()+".damaged", l.recordsCopy(), l.recordsCopy()+".new", l.netns(), l.ipam(), l.cniCache()) {
		errs = append(errs, filetree.RemoveAll(ctx, dir))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("purge: %w", err)
	}
	return nil
}

func isClosedListener(err error) bool { return errors.Is(err, net.ErrClosed) }
