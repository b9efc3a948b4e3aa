package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"

	bolt "go.etcd.io/bbolt"
)

// ErrNotFound says that a table has no record of that key.
var ErrNotFound = errors.New("not found")

// Migration turns the JSON of a record of one version into that of the next.
type Migration func(old []byte) ([]byte, error)

// Table is one kind of record, by key. Reads come from memory. It is safe for concurrent use; the values it hands out are
// shared, so T is treated as immutable (or is a value without pointers into shared state).
type Table[T any] struct {
	db   *DB
	name []byte

	mu   sync.RWMutex
	rows map[string]T
}

var versionKey = []byte("\x00version")

// NewTable opens the table name, creating it when it is new. Its version is the number of migrations; rows of an older
// version are migrated in one transaction, and a newer version is refused, because an older program must not rewrite it.
func NewTable[T any](db *DB, name string, migrations ...Migration) (*Table[T], error) {
	t := &Table[T]{db: db, name: []byte(name), rows: map[string]T{}}
	err := db.bolt.Update(func(tx *bolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists(t.name)
		if err != nil {
			return err
		}
		if err := migrate(b, migrations); err != nil {
			return err
		}
		return b.ForEach(func(k, v []byte) error {
			if slices.Equal(k, versionKey) {
				return nil
			}
			var row T
			if err := json.Unmarshal(v, &row); err != nil {
				return fmt.Errorf("decode record %q: %w", k, err)
			}
			t.rows[string(k)] = row
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("open table %s: %w", name, err)
	}
	return t, nil
}

func migrate(b *bolt.Bucket, migrations []Migration) error {
	have := len(migrations)
	if v := b.Get(versionKey); v != nil {
		if err := json.Unmarshal(v, &have); err != nil {
			return fmt.Errorf("decode version: %w", err)
		}
	}
	if have > len(migrations) {
		return fmt.Errorf("records are of version %d, this program knows up to %d", have, len(migrations))
	}
	if have < len(migrations) {
		rows := map[string][]byte{}
		err := b.ForEach(func(k, v []byte) (err error) {
			if slices.Equal(k, versionKey) {
				return nil
			}
			v = slices.Clone(v)
			for i := have; i < len(migrations); i++ {
				if v, err = migrations[i](v); err != nil {
					return fmt.Errorf("migrate record %q to version %d: %w", k, i+1, err)
				}
			}
			rows[string(k)] = v
			return nil
		})
		if err != nil {
			return err
		}
		for k, v := range rows {
			if err := b.Put([]byte(k), v); err != nil {
				return err
			}
		}
	}
	v, err := json.Marshal(len(migrations))
	if err != nil {
		return err
	}
	return b.Put(versionKey, v)
}

// Put writes the record of key.
func (t *Table[T]) Put(key string, row T) error {
	v, err := json.Marshal(row)
	if err != nil {
		return fmt.Errorf("encode record %q: %w", key, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	err = t.db.bolt.Update(func(tx *bolt.Tx) error { return tx.Bucket(t.name).Put([]byte(key), v) })
	if err != nil {
		return fmt.Errorf("write record %q: %w", key, err)
	}
	t.rows[key] = row
	t.db.touched()
	return nil
}

// Get returns the record of key, or [ErrNotFound].
func (t *Table[T]) Get(key string) (T, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	row, ok := t.rows[key]
	if !ok {
		return row, fmt.Errorf("record %q: %w", key, ErrNotFound)
	}
	return row, nil
}

// Delete removes the record of key; it is no error when there is none.
func (t *Table[T]) Delete(key string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.rows[key]; !ok {
		return nil
	}
	err := t.db.bolt.Update(func(tx *bolt.Tx) error { return tx.Bucket(t.name).Delete([]byte(key)) })
	if err != nil {
		return fmt.Errorf("delete record %q: %w", key, err)
	}
	delete(t.rows, key)
	t.db.touched()
	return nil
}

// All ranges over a copy of the table as it is now, in no order.
func (t *Table[T]) All() iter.Seq2[string, T] {
	t.mu.RLock()
	rows := maps.Clone(t.rows)
	t.mu.RUnlock()
	return maps.All(rows)
}
