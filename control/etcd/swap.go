package etcd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/berth-node/berth/internal/atomicfile"
)

// A store takes the place of another one by two renames, and a record before them that tells what they are to be. While
// there is no record the old store counts, whatever is beside it; from then on the new one does, and whoever comes next
// ends what was begun.

// maxRecord bounds what is read of the record, in bytes.
const maxRecord = 64 << 10

// restoring is where a store is until it is whole.
func restoring(dir string) string { return dir + ".restoring" }

// swapping is the record.
func swapping(dir string) string { return dir + ".swap.json" }

// aside is where a store is that was replaced at a time.
func aside(dir, at string) string { return dir + ".before-" + at }

// asides are the stores that were replaced and are still there.
func asides(dir string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(dir))
	if err != nil {
		return nil, err
	}
	var all []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), filepath.Base(aside(dir, ""))) {
			all = append(all, filepath.Join(filepath.Dir(dir), e.Name()))
		}
	}
	return all, nil
}

// swapRecord is what the record has.
type swapRecord struct {
	// Aside is the name that the old store gets.
	Aside string `json:"aside"`
}

// swap puts the store in dir aside, if there is one, and the restored one in its place. It tells where the old one is.
func swap(dir string, now time.Time) (string, error) {
	to, err := freeName(dir, now)
	if err != nil {
		return "", fmt.Errorf("put store aside: %w", err)
	}
	was, err := exists(dir)
	if err != nil {
		return "", fmt.Errorf("put store aside: %w", err)
	}
	text, err := json.Marshal(swapRecord{filepath.Base(to)})
	if err == nil {
		err = atomicfile.WriteSynced(swapping(dir), text, 0o600)
	}
	if err != nil {
		return "", fmt.Errorf("record restored store: %w", err)
	}
	if err := settle(dir); err != nil || !was {
		return "", err
	}
	return to, nil
}

// freeName is a name for the old store that nothing has: two restores may be in one second.
func freeName(dir string, now time.Time) (string, error) {
	for {
		to := aside(dir, now.UTC().Format(copyTime))
		if taken, err := exists(to); err != nil || !taken {
			return to, err
		}
		now = now.Add(time.Second)
	}
}

// settle ends a swap that is recorded. Each step may have been done already. Without a record it removes what a restore
// has left that was killed.
func settle(dir string) error {
	text, err := atomicfile.Read(swapping(dir), maxRecord)
	if errors.Is(err, fs.ErrNotExist) {
		if err := errors.Join(os.RemoveAll(restoring(dir)), os.RemoveAll(swapping(dir)+atomicfile.Part)); err != nil {
			return fmt.Errorf("remove what a restore has left: %w", err)
		}
		return nil
	}
	var r swapRecord
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err == nil && r.Aside != filepath.Base(r.Aside) {
		err = fmt.Errorf("%q is no name", r.Aside)
	}
	if err != nil {
		return fmt.Errorf("read record of a restored store %s: %w; move it away, and run berth-control etcd restore again", swapping(dir), err)
	}
	if err := exchange(dir, filepath.Join(filepath.Dir(dir), r.Aside)); err != nil {
		return fmt.Errorf("put restored store in its place: %w", err)
	}
	if err := os.Remove(swapping(dir)); err != nil {
		return fmt.Errorf("remove record of a restored store: %w", err)
	}
	return atomicfile.SyncDir(filepath.Dir(dir))
}

func exchange(dir, to string) error {
	made, err := exists(restoring(dir))
	if err != nil || !made {
		return err // it is in its place
	}
	was, err := exists(dir)
	if err != nil {
		return err
	}
	if was {
		// One rename must be on the disk before the other: the name to go to is free then.
		if err := errors.Join(os.Rename(dir, to), atomicfile.SyncDir(filepath.Dir(dir))); err != nil {
			return err
		}
	}
	return errors.Join(os.Rename(restoring(dir), dir), atomicfile.SyncDir(filepath.Dir(dir)))
}
