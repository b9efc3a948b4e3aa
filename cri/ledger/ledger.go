// Package ledger keeps the records of sandboxes and containers, on the disk and in memory: each is found by its ID, and
// has a name that no other has.
package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/berth-node/berth/cri/store"
)

// Ledger keeps the records of one kind twice: in the table of all, and each in its pod's own directory, beside what the
// keeper records. The table counts. Where it is lost, or some of it, a pod is adopted by what its own directory has.
type Ledger[T any] struct {
	kind  string // the table's name
	table *store.Table[T]
	Own   func(rec T) string // the path in the pod's directory
}

// New returns the ledger of a kind; own is where the second copy of a record is.
func New[T any](db *store.DB, kind string, own func(T) string) (Ledger[T], error) {
	t, err := store.NewTable[T](db, kind)
	return Ledger[T]{kind, t, own}, err
}

// Put writes the record of what is to be begun.
func (l *Ledger[T]) Put(id string, rec T) error {
	row, err := store.Encode(rec)
	if err != nil {
		return err
	}
	if err := l.table.PutRow(id, row); err != nil {
		return err
	}
	return l.keep(id, rec, row)
}

// Note is put of what has happened already.
func (l *Ledger[T]) Note(id string, rec T) error {
	row, err := store.Encode(rec)
	if err != nil {
		return err
	}
	return errors.Join(l.table.NoteRow(id, row), l.keep(id, rec, row))
}

// Keep writes the pod's own. Before its directory is made and when that is removed there is nothing to be adopted.
func (l *Ledger[T]) Keep(id string, rec T) error {
	row, err := store.Encode(rec)
	if err != nil {
		return err
	}
	return l.keep(id, rec, row)
}

func (l *Ledger[T]) keep(id string, rec T, row store.Row[T]) error {
	if err := store.WriteFile(l.Own(rec), l.kind, id, row); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("keep it with its pod: %w", err)
	}
	return nil
}

// Drop ends a record: the pod's own first, as the table's still says what of it is to be removed.
func (l *Ledger[T]) Drop(id, own string) error {
	if err := os.Remove(own); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return l.table.Delete(id)
}

// Get is the record of id as the table has it.
func (l *Ledger[T]) Get(id string) (T, error) { return l.table.Get(id) }

// Found is a record, and what is encoded in it.
type Found[T, D any] struct {
	Rec     T
	Decoded D
	Adopted bool // it is the pod's own, as the table has none that can be read
}

// Find looks for the record of id: in the table, and where that has none that decode takes, or has lost something, at
// own. It fails with [fs.ErrNotExist] where there is none.
func Find[T, D any](l *Ledger[T], id, own string, lost bool, decode func(T) (D, error)) (Found[T, D], error) {
	rec, err := l.table.Get(id)
	if bad := l.table.Damaged()[id]; bad != nil {
		err = bad
	}
	var decoded D
	if err == nil {
		decoded, err = decode(rec)
	}
	if err == nil && !lost {
		return Found[T, D]{Rec: rec, Decoded: decoded}, nil
	}
	var second T
	var secondDecoded D
	ownErr := store.ReadFile(own, l.kind, id, &second)
	if ownErr == nil {
		secondDecoded, ownErr = decode(second)
	}
	switch {
	case ownErr == nil:
		return Found[T, D]{second, secondDecoded, err != nil}, l.table.Note(id, second)
	case err == nil:
		return Found[T, D]{Rec: rec, Decoded: decoded}, nil
	case errors.Is(err, store.ErrNotFound):
		return Found[T, D]{}, ownErr
	}
	return Found[T, D]{}, err
}

// Supply writes the pod's own record where there is none: an earlier version wrote none.
func (l *Ledger[T]) Supply(id string, rec T) error {
	own := l.Own(rec)
	if _, err := os.Lstat(own); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Mkdir(filepath.Dir(own), 0o700); err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return l.Keep(id, rec)
}

// IDs are the keys of the table, also of what cannot be read.
func (l *Ledger[T]) IDs(yield func(id string)) {
	for id := range l.table.All() {
		yield(id)
	}
	for id := range l.table.Damaged() {
		yield(id)
	}
}
