package upgrade

import (
	"errors"
	"fmt"
	"os"
)

// Superseded says that an upgrade was cut off, and that somebody has installed yet another version since: neither to
// finish nor to undo it is what anybody means then, as both replace a program that runs, and its records by older ones.
// packaged is the version that the packager has installed as a whole; "" where it has not, or is not asked.
func (f *Found) Superseded(packaged string) (bool, error) {
	r := f.record
	if r.State == Preparing || r.State == Done {
		return false, nil
	}
	has, err := digestOf(r.program().Path)
	switch {
	case err != nil || has == "" || has == r.program().Old:
		return false, err
	case r.Package == "":
		return has != r.program().New, nil
	}
	return packaged != "" && packaged != r.To, nil // which digest the packager's program has was not known before
}

// Abandon forgets an upgrade that was cut off, with all that was kept for it: what is installed stays as it is.
func (u *Upgrades) Abandon() error {
	r, err := u.read(underWayName)
	if r == nil || err != nil {
		return err
	}
	u.before("abandon")
	for _, f := range r.Files {
		if err := errors.Join(remove(f.Path+Previous), remove(f.Path+back)); err != nil {
			return fmt.Errorf("forget upgrade: %w", err)
		}
	}
	if err := u.names().unkeep(r.Stale); err != nil {
		return err
	}
	// The last one that was done speaks of files that are kept no more.
	if err := errors.Join(os.RemoveAll(u.at(storesName)), remove(u.at(settledName))); err != nil {
		return fmt.Errorf("forget upgrade: %w", err)
	}
	return u.drop(r)
}
