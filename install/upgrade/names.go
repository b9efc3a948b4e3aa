package upgrade

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berth-node/berth/internal/atomicfile"
)

// names has files ready, and gives them each other's names, which is all that is done to a file that is in use: that
// takes no room, and can be repeated.
type names struct{ tell, before func(string) }

// prepare writes the new files beside the old ones, where only a rename is left to do: that needs no room on the disk.
func (n names) prepare(files []File) error {
	for _, f := range files {
		n.tell("prepare " + f.Path)
		if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
			return fmt.Errorf("prepare %s: %w", f.Path, err)
		}
		n.before("copy")
		if err := copyFile(f.From, f.Path+Staged, f.Mode); err != nil {
			return fmt.Errorf("prepare %s: %w", f.Path, err)
		}
		// What is on the disk counts, not what was meant to be.
		if has, err := digestOf(f.Path + Staged); err != nil || has != f.New {
			return errors.Join(err, fmt.Errorf("prepare %s: the copy is not what was copied", f.Path))
		}
	}
	return nil
}

// keep gives what is replaced a second name, which takes no room.
func (n names) keep(f File) error {
	n.before("keep")
	has, err := digestOf(f.Path)
	if err != nil {
		return err
	}
	if has != f.Old || f.Old == "" {
		if f.Old == "" {
			return remove(f.Path + Previous)
		}
		return nil // replaced already, and kept before that
	}
	if err := remove(f.Path + Previous); err != nil {
		return err
	}
	n.before("link")
	return os.Link(f.Path, f.Path+Previous)
}

// take gives the name to the new file.
func (n names) take(f File) error {
	has, err := digestOf(f.Path)
	if err == nil && has != f.New {
		n.tell("replace " + f.Path)
		n.before("rename")
		err = os.Rename(f.Path+Staged, f.Path)
	}
	if err == nil {
		err = atomicfile.SyncDir(filepath.Dir(f.Path))
	}
	return err
}

// giveBack gives a name back to what had it. The file keeps its second name until all is over, so that this can be
// repeated.
func (n names) giveBack(f File) error {
	has, err := digestOf(f.Path)
	if err != nil || has == f.Old {
		return err
	}
	n.tell("put back " + f.Path)
	if f.Old == "" {
		err = remove(f.Path)
	} else if err = remove(f.Path + back); err == nil {
		n.before("link back")
		if err = os.Link(f.Path+Previous, f.Path+back); err == nil {
			n.before("rename back")
			err = os.Rename(f.Path+back, f.Path)
		}
	}
	if err == nil {
		err = atomicfile.SyncDir(filepath.Dir(f.Path))
	}
	return err
}

// unkeep removes what was kept of files that the upgrade before replaced and this one does not.
func (n names) unkeep(paths []string) error {
	n.before("unkeep")
	for _, path := range paths {
		if err := remove(path + Previous); err != nil {
			return fmt.Errorf("remove what was kept of the last upgrade: %w", err)
		}
	}
	return nil
}
