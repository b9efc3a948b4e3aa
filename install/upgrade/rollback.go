package upgrade

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
)

// ErrNothing says that there is no upgrade to take back.
var ErrNothing = errors.New("there is no upgrade to roll back")

// Rollback undoes the upgrade that was cut off, or the last one that was done.
func (u *Upgrades) Rollback(ctx context.Context, n Node) error {
	r, err := u.read(underWayName)
	if err != nil {
		return err
	}
	if r != nil && r.State == Preparing {
		return u.drop(r)
	}
	if r == nil {
		if r, err = u.read(settledName); err != nil {
			return err
		}
		if r == nil {
			return ErrNothing
		}
	}
	return u.backward(ctx, r, n)
}

// backward gives the old files their names back, and starts the old agent. It is repeated after it was cut off.
//
// The stores are restored when the new version may have written to them, and the old one has not since. After an
// upgrade that was done they are what the pods of now are known by, so that the old version is tried with them first.
func (u *Upgrades) backward(ctx context.Context, r *record, n Node) error {
	if r.State != RollingBack {
		r.Late = r.State == Done
		r.Restore = r.replaced() && !r.Late
	}
	// Where it cannot be recorded, as on a disk that is full, what was recorded before leads here again.
	unrecorded := u.to(r, RollingBack)
	if unrecorded == nil {
		if err := remove(u.at(settledName)); err != nil {
			return err
		}
	}
	err := u.returned(ctx, r, n)
	if err != nil && r.Late && !r.Restore {
		u.tell(fmt.Sprintf("%s does not start with the stores of now: it gets those that it had (%v)", name(r.From), err))
		r.Restore = true
		if unrecorded = u.to(r, RollingBack); unrecorded == nil {
			err = u.returned(ctx, r, n)
		}
	}
	if err != nil {
		return errors.Join(err, unrecorded)
	}
	// From here on it is over: what is begun again does not need what is removed now.
	r.Restore, r.Late = false, false
	if err := u.to(r, RollingBack); err != nil {
		return err
	}
	u.before("tidy")
	for _, f := range r.Files {
		if err := errors.Join(remove(f.Path+Previous), remove(f.Path+Staged)); err != nil {
			return fmt.Errorf("tidy up: %w", err)
		}
	}
	if err := u.names().unkeep(r.Stale); err != nil {
		return err
	}
	if r.Package == "" {
		if err := n.Owns(reversed(r.Files), true); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(u.at(storesName)); err != nil {
		return fmt.Errorf("remove copies of stores: %w", err)
	}
	u.tell(name(r.From) + " runs again")
	return u.drop(r)
}

// reversed are the files as they are without the upgrade.
func reversed(files []File) []File {
	out := make([]File, 0, len(files))
	for _, f := range files {
		f.Old, f.New = f.New, f.Old
		out = append(out, f)
	}
	return out
}

func (u *Upgrades) returned(ctx context.Context, r *record, n Node) error {
	release, err := n.Stop(ctx)
	if err != nil && !r.Restore && r.untouched() {
		u.tell("nothing was replaced yet, and the agent goes on as it is")
		return nil
	}
	if err != nil {
		return fmt.Errorf("stop the agent: %w", err)
	}
	defer release()
	// The stores come first: once the old program has its name, a boot may have started it, and what it has written
	// counts.
	if r.Restore && (r.replaced() || r.Late) {
		u.tell("put the stores back")
		u.before("restore")
		if err := u.copies().restore(r.Stores); err != nil {
			return err
		}
	}
	for _, f := range slices.Backward(r.Files) {
		if err := u.names().giveBack(f); err != nil {
			return fmt.Errorf("put %s back: %w", f.Path, err)
		}
	}
	release()
	u.before("reinstall")
	r.reinstall(ctx, n, u.tell)
	u.tell("start " + name(r.From) + ", and wait until it is ready")
	return n.Again(ctx, r.program().Path)
}

// reinstall has the packager know what is there again, and put back what else its package has brought. The files that
// count are back already: where it cannot, the old version runs all the same.
func (r *record) reinstall(ctx context.Context, n Node, tell func(string)) {
	if !r.Called {
		return
	}
	err := errors.New("no package of it is kept")
	if r.Before != "" {
		tell("have the packager install " + name(r.From) + " again")
		err = n.Install(ctx, r.Before)
	}
	if err != nil {
		tell(fmt.Sprintf("the packager takes this machine's berth for %s still: install the package of %s when you have it (%v)",
			name(r.To), name(r.From), err))
	}
}

// untouched says that every file is what it was.
func (r *record) untouched() bool {
	for _, f := range r.Files {
		if has, err := digestOf(f.Path); err != nil || has != f.Old {
			return false
		}
	}
	return true
}
