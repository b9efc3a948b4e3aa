package kind

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/berth-node/berth/agent/record"
)

// ErrDamaged is of a record that is there and says nothing.
var ErrDamaged = errors.New("record is damaged")

// Records say what a kind has done on the node for the volumes of pods: T is what it has to know to undo it, without
// the pod's specification and without its PersistentVolume, which may have changed or gone. Each pod's are in a file of
// its directory, by volume. A record is written before anything of it is done and goes after all of it was undone.
//
// What several pods share on the node, as the staging of one disk, belongs to all whose records say so, and goes with
// the last of them.
type Records[T any] struct {
	Root Root
	File string // its name in a pod's directory
	What string // what the records are of, for messages: "iSCSI disks"
}

// Of returns the records of the pod that has the directory, by volume.
func (r Records[T]) Of(dir string) (map[string]T, error) {
	data, err := os.ReadFile(filepath.Join(dir, r.File))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read which %s the pod has: %w", r.What, err)
	}
	var out map[string]T
	if err := json.Unmarshal(data, &out); err != nil {
		return nil, fmt.Errorf("read which %s the pod has: %w: %s: %w", r.What, ErrDamaged, filepath.Join(dir, r.File), err)
	}
	return out, nil
}

// Keep records v for a volume.
func (r Records[T]) Keep(dir, volume string, v T) error {
	all, err := r.Of(dir)
	if err != nil {
		return err
	}
	if all == nil {
		all = map[string]T{}
	}
	all[volume] = v
	return r.write(dir, all)
}

// Forget removes the record of a volume.
func (r Records[T]) Forget(dir, volume string) error {
	all, err := r.Of(dir)
	if err != nil {
		return err
	}
	delete(all, volume)
	return r.write(dir, all)
}

// write is synced: unlike most that is recorded, what drivers and initiators keep of their own outlives the machine's
// loss of power, passwords too.
func (r Records[T]) write(dir string, all map[string]T) error {
	return record.Keep(filepath.Join(dir, r.File), all)
}

// Others says whether the record of another volume, of this pod or of any other, is as asked for. One that is damaged
// may be: what it would share stays.
func (r Records[T]) Others(dir, volume string, like func(T) bool) (bool, error) {
	found := false
	err := r.Root.Each(func(other string) error {
		all, err := r.Of(other)
		if errors.Is(err, ErrDamaged) {
			found = true
			return nil
		}
		for name, v := range all {
			found = found || (other != dir || name != volume) && like(v)
		}
		return err
	})
	return found, err
}
