package upgrade

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/berth-node/berth/internal/atomicfile"
)

// undoPatience bounds the way back, which is gone also when the caller has given up.
const undoPatience = 15 * time.Minute

// Run upgrades. Of the job's files Old and New are found out here. Where the new version does not come up it goes back
// to what was there, and fails with [ErrRolledBack]. It fails with [ErrUnderWay] before it does anything while another
// upgrade is not finished.
func (u *Upgrades) Run(ctx context.Context, j Job, n Node) error {
	if r, err := u.read(underWayName); err != nil || r != nil {
		return errors.Join(err, ErrUnderWay)
	}
	r := &record{Job: j}
	if err := j.check(); err != nil {
		return fmt.Errorf("upgrade: %w", err)
	}
	if err := r.measure(); err != nil {
		return err
	}
	last, err := u.read(settledName)
	if err != nil {
		return err
	}
	r.supersede(last)
	if err := u.to(r, Preparing); err != nil {
		return err
	}
	if r.Package == "" {
		err = u.names().prepare(r.Files)
	}
	if err == nil {
		err = u.to(r, Stopping)
	}
	if err != nil {
		return errors.Join(err, u.drop(r))
	}
	return u.onward(ctx, r, n, u.replace(ctx, r, n))
}

// supersede notes what is kept of the upgrade before alone. Its record goes when this one replaces the first file, and
// with it whoever would know of these.
func (r *record) supersede(last *record) {
	if last == nil {
		return
	}
	for _, f := range last.Files {
		if !slices.ContainsFunc(r.Files, func(g File) bool { return g.Path == f.Path }) {
			r.Stale = append(r.Stale, f.Path)
		}
	}
}

// measure says what the files are now and what they are to be.
func (r *record) measure() error {
	for i := range r.Files {
		f := &r.Files[i]
		var err error
		if f.Old, err = digestOf(f.Path); err != nil {
			return fmt.Errorf("look at %s: %w", f.Path, err)
		}
		if r.Package != "" {
			continue // the packager knows what it will be
		}
		if f.New, err = digestOf(f.From); err == nil && f.New == "" {
			err = fs.ErrNotExist
		}
		if err != nil {
			return fmt.Errorf("look at what %s is to be: %w", f.Path, err)
		}
	}
	// What is the same already stays as it is, but for the program: it is what is started.
	program := r.program().Path
	r.Files = slices.DeleteFunc(r.Files, func(f File) bool { return f.Path != program && f.Old == f.New && r.Package == "" })
	return nil
}

// drop forgets an upgrade that has changed nothing.
func (u *Upgrades) drop(r *record) error {
	u.before("drop")
	for _, f := range r.Files {
		if err := errors.Join(remove(f.Path+Staged), remove(f.Path+Staged+atomicfile.Part)); err != nil {
			return fmt.Errorf("undo preparation of %s: %w", f.Path, err)
		}
	}
	if err := errors.Join(os.RemoveAll(u.at(storesName+atomicfile.Part)), remove(u.at(underWayName))); err != nil {
		return fmt.Errorf("forget upgrade: %w", err)
	}
	u.sweep()
	return nil
}

// onward starts the new version, unless what came before has failed: that is taken back, and so is a version that does
// not come up.
func (u *Upgrades) onward(ctx context.Context, r *record, n Node, err error) error {
	if err == nil {
		err = u.begin(ctx, r, n)
	}
	if err == nil {
		return u.settle(r, n)
	}
	u.tell(fmt.Sprintf("the upgrade fails, and is taken back: %v", err))
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoPatience)
	defer cancel()
	if back := u.backward(ctx, r, n); back != nil {
		return errors.Join(err, fmt.Errorf("roll back: %w; `berth upgrade --rollback` tries that again", back))
	}
	return fmt.Errorf("%w to %s: %w", ErrRolledBack, name(r.From), err)
}

func name(version string) string {
	if version == "" {
		return "what was there"
	}
	return version
}

// replace gives the new files the names, between the end of one agent and the start of the next.
func (u *Upgrades) replace(ctx context.Context, r *record, n Node) error {
	u.tell("stop the agent; pods go on running")
	release, err := n.Stop(ctx)
	if err != nil {
		return fmt.Errorf("stop the agent: %w", err)
	}
	defer release()
	u.tell(fmt.Sprintf("copy %d stores", len(r.Stores)))
	if err := u.copies().save(r.Stores); err != nil {
		return err
	}
	if err := n.Owns(r.Files, false); err != nil {
		return err
	}
	r.Called = r.Package != ""
	if err := u.to(r, Swapping); err != nil {
		return err
	}
	return u.swap(ctx, r, n, release)
}

// swap is repeated after it was cut off.
func (u *Upgrades) swap(ctx context.Context, r *record, n Node, release func()) error {
	// It speaks of programs that are kept no more from here on.
	u.before("forget")
	if err := remove(u.at(settledName)); err != nil {
		return fmt.Errorf("forget the last upgrade: %w", err)
	}
	for _, f := range r.Files {
		if err := u.names().keep(f); err != nil {
			return fmt.Errorf("keep %s: %w", f.Path, err)
		}
	}
	if r.Package != "" {
		u.tell("install " + r.Package)
		release() // its scripts may start the agent
		if err := n.Install(ctx, r.Package); err != nil {
			return fmt.Errorf("install package: %w", err)
		}
		return nil
	}
	for _, f := range r.Files {
		if err := u.names().take(f); err != nil {
			return fmt.Errorf("replace %s: %w", f.Path, err)
		}
	}
	return nil
}

// begin starts the new agent.
func (u *Upgrades) begin(ctx context.Context, r *record, n Node) error {
	if err := u.to(r, Starting); err != nil {
		return err
	}
	u.tell("start " + name(r.To) + " where an agent ran, and wait until it is ready")
	if err := n.Start(ctx, r.program().Path); err != nil {
		return fmt.Errorf("start %s: %w", name(r.To), err)
	}
	return nil
}

// settle has what was done be the last upgrade.
func (u *Upgrades) settle(r *record, n Node) error {
	if r.Package == "" {
		if err := n.Owns(r.Files, true); err != nil {
			return err
		}
	}
	if err := u.to(r, Done); err != nil {
		return err
	}
	return u.finish(r)
}

// finish puts the record of what is done where it stays.
func (u *Upgrades) finish(r *record) error {
	for _, f := range r.Files {
		if err := remove(f.Path + Staged); err != nil {
			return fmt.Errorf("finish upgrade: %w", err)
		}
	}
	if err := u.names().unkeep(r.Stale); err != nil {
		return err
	}
	u.before("settle")
	err := os.Rename(u.at(underWayName), u.at(settledName))
	if err == nil {
		err = atomicfile.SyncDir(u.dir)
	}
	if err != nil {
		return fmt.Errorf("finish upgrade: %w", err)
	}
	u.sweep()
	u.tell(name(r.To) + " runs; `berth upgrade --rollback` goes back to " + name(r.From))
	return nil
}

// Resume finishes an upgrade that was cut off, or undoes it where it cannot be finished. It does nothing when there is
// none.
func (u *Upgrades) Resume(ctx context.Context, n Node) error {
	r, err := u.read(underWayName)
	if r == nil || err != nil {
		return err
	}
	u.tell(fmt.Sprintf("an upgrade from %s to %s was cut off while it was %s", name(r.From), name(r.To), r.State))
	switch r.State {
	case Preparing:
		return u.drop(r) // nothing was changed, and what it was made of may be gone
	case Done:
		return u.finish(r)
	case RollingBack:
		return u.backward(ctx, r, n)
	case Stopping, Swapping:
	case Starting:
		return u.again(ctx, r, n)
	}
	if r.replaced() {
		// The stores are those that were copied then: an agent of the new version may have written to them since.
		return u.again(ctx, r, n)
	}
	// An agent of the old version may have run since its stores were copied.
	if err := u.to(r, Stopping); err != nil {
		return err
	}
	return u.onward(ctx, r, n, u.replace(ctx, r, n))
}

// replaced says that the program is the new one, or not the old one any more.
func (r *record) replaced() bool {
	has, err := digestOf(r.program().Path)
	return err == nil && has != r.program().Old
}

// again finishes what has begun to replace files.
func (u *Upgrades) again(ctx context.Context, r *record, n Node) error {
	release, err := n.Stop(ctx)
	if err == nil {
		err = u.swap(ctx, r, n, release)
		release()
	}
	return u.onward(ctx, r, n, err)
}
