package install

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/berth-node/berth/internal/atomicfile"
)

// Removal is what is removed of an installation, and what stays.
type Removal struct {
	Files []string
	Kept  map[string]string // path: why it stays
}

// PlanRemoval says what Remove would do.
func (i *Installation) PlanRemoval() (Removal, error) {
	r, err := i.read()
	if err != nil {
		return Removal{}, err
	}
	out := Removal{Kept: map[string]string{}}
	for path, digests := range r.Files {
		st, err := os.Lstat(i.at(path))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err == nil && !st.Mode().IsRegular():
			out.Kept[path] = "it is no file any more"
			continue
		}
		data, err := os.ReadFile(i.at(path))
		switch {
		case err != nil:
			out.Kept[path] = err.Error()
		case !slices.Contains(digests, digest(data)):
			out.Kept[path] = "somebody has changed it"
		default:
			out.Files = append(out.Files, path)
		}
	}
	slices.Sort(out.Files)
	return out, nil
}

// Remove removes what was installed and nobody has changed, with directories that were made for it and are empty. It
// can be repeated.
func (i *Installation) Remove() (Removal, error) {
	out, err := i.PlanRemoval()
	if err != nil {
		return out, err
	}
	r, err := i.read()
	if err != nil {
		return out, err
	}
	for _, path := range i.inOrder(r) {
		if err := i.takeAway(path, slices.Contains(out.Files, path)); err != nil {
			return out, fmt.Errorf("remove %s: %w", path, err)
		}
	}
	// It is nobody else's, and made before the record.
	r.Dirs = append(r.Dirs, i.Layout.Libexec)
	slices.SortFunc(r.Dirs, func(a, b string) int { return len(b) - len(a) }) // those inside first
	_ = os.Remove(i.RecordPath() + atomicfile.Part)
	removeDirs := func() {
		for _, dir := range r.Dirs {
			_ = os.Remove(i.at(dir)) // it stays when somebody has put something there
		}
	}
	removeDirs()
	if err := os.Remove(i.RecordPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return out, fmt.Errorf("remove record of what is installed: %w", err)
	}
	removeDirs()
	return out, nil
}

// inOrder are the recorded files as they are removed: the program last, by which somebody goes on after this was
// killed.
func (i *Installation) inOrder(r *record) []string {
	program := filepath.Join(i.Layout.Bin, "berth")
	out := slices.Sorted(maps.Keys(r.Files))
	if at := slices.Index(out, program); at >= 0 {
		out = append(slices.Delete(out, at, at+1), program)
	}
	return out
}

// takeAway removes a file that is as it was installed, and gives its name back to what had it before.
func (i *Installation) takeAway(path string, ours bool) error {
	at := i.at(path)
	_ = os.Remove(at + atomicfile.Part) // of an installation that was killed
	aside, err := os.Lstat(at + ForeignSuffix)
	if err == nil {
		now, err := os.Lstat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist), err == nil && ours:
			return os.Rename(at+ForeignSuffix, at)
		case err == nil && os.SameFile(now, aside): // the installation was killed before it had replaced it
			return os.Remove(at + ForeignSuffix)
		}
		return err // who has changed our file has both
	}
	if ours {
		err = os.Remove(at)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// RemoveDirs removes the directories of [Installation.MakeDirs] that have nothing in them.
func (i *Installation) RemoveDirs() {
	for _, dir := range []string{i.Layout.Manifests, i.Layout.Config} {
		_ = os.Remove(i.at(dir))
	}
}
