package cri

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/berth-node/berth/cri/store"
)

// ledger keeps the records of one kind twice: in the table of all, and each in its pod's own directory, beside what the keeper
// records. The table counts. Where it is lost, or some of it, a pod is adopted by what its own directory has.
type ledger[T any] struct {
	kind  string // the table's name
	table *store.Table[T]
	own   func(rec T) string // the path in the pod's directory
}

func newLedger[T any](db *store.DB, kind string, own func(T) string) (ledger[T], error) {
	t, err := store.NewTable[T](db, kind)
	return ledger[T]{kind, t, own}, err
}

// put writes the record of what is to be begun.
func (l *ledger[T]) put(id string, rec T) error {
	if err := l.table.Put(id, rec); err != nil {
		return err
	}
	return l.keep(id, rec)
}

// note is put of what has happened already.
func (l *ledger[T]) note(id string, rec T) error {
	return errors.Join(l.table.Note(id, rec), l.keep(id, rec))
}

// keep writes the pod's own. Before its directory is made and when that is removed there is nothing to be adopted.
func (l *ledger[T]) keep(id string, rec T) error {
	if err := store.WriteFile(l.own(rec), l.kind, id, rec); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("keep it with its pod: %w", err)
	}
	return nil
}

// drop ends a record: the pod's own first, as the table's still says what of it is to be removed.
func (l *ledger[T]) drop(id, own string) error {
	if err := remove(own); err != nil {
		return err
	}
	return l.table.Delete(id)
}

// found is a record as [ledger.find] has it.
type found[T any] struct {
	rec     T
	adopted bool // it is the pod's own, as the table has none that can be read
}

// find looks for the record of id: in the table, and where that has none that holds, or has lost something, at own. It fails with
// [fs.ErrNotExist] where there is none.
func (l *ledger[T]) find(id, own string, lost bool, check func(T) error) (found[T], error) {
	rec, err := l.table.Get(id)
	if bad := l.table.Damaged()[id]; bad != nil {
		err = bad
	}
	if err == nil {
		err = check(rec)
	}
	if err == nil && !lost {
		return found[T]{rec: rec}, nil
	}
	var second T
	ownErr := store.ReadFile(own, l.kind, id, &second)
	if ownErr == nil {
		ownErr = check(second)
	}
	switch {
	case ownErr == nil:
		return found[T]{second, err != nil}, l.table.Note(id, second)
	case err == nil:
		return found[T]{rec: rec}, nil
	case errors.Is(err, store.ErrNotFound):
		return found[T]{}, ownErr
	}
	return found[T]{}, err
}

// supply writes the pod's own record where there is none: an earlier version wrote none.
func (l *ledger[T]) supply(id string, rec T) error {
	own := l.own(rec)
	if _, err := os.Lstat(own); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Mkdir(filepath.Dir(own), 0o700); err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return l.keep(id, rec)
}

// ids are the keys of the table, also of what cannot be read.
func (l *ledger[T]) ids(yield func(id string)) {
	for id := range l.table.All() {
		yield(id)
	}
	for id := range l.table.Damaged() {
		yield(id)
	}
}
