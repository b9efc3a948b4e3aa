package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"sync"
)

// ErrNotFound says that a table has no record of that key.
var ErrNotFound = errors.New("not found")

// Migration turns the JSON of a record of one version into that of the next.
type Migration func(old []byte) ([]byte, error)

// Table is one kind of record, by key. Reads come from memory. It is safe for concurrent use; the values it hands out
// are shared, so T is treated as immutable (or is a value without pointers into shared state).
type Table[T any] struct {
	db      *DB
	name    string
	version []byte

	mu      sync.RWMutex
	rows    map[string]T
	damaged map[string]error // records that cannot be decoded stay as they are
}

const versionKey = "\x00version"

// NewTable opens the table name. Its version is the number of migrations; rows of an older version are migrated, and a
// newer version is refused, because an older program must not rewrite it. A row that cannot be decoded is left as it is
// and told: see [Table.Damaged].
func NewTable[T any](db *DB, name string, migrations ...Migration) (*Table[T], error) {
	if !validTable(name) {
		return nil, fmt.Errorf("open table %q: no name for one", name)
	}
	t := &Table[T]{db: db, name: name, rows: map[string]T{}, damaged: map[string]error{}}
	if err := t.open(migrations); err != nil {
		return nil, fmt.Errorf("open table %s: %w", name, err)
	}
	for key, err := range t.damaged {
		db.log.Error("record cannot be read and is left as it is", "table", name, "key", key, "error", err)
	}
	return t, nil
}

func (t *Table[T]) open(migrations []Migration) error {
	var err error
	if t.version, err = json.Marshal(len(migrations)); err != nil {
		return err
	}
	rows := t.db.take(t.name)
	have := len(migrations)
	v, versioned := rows[versionKey]
	if versioned {
		if err := json.Unmarshal(v, &have); err != nil {
			return fmt.Errorf("decode version: %w", err)
		}
		delete(rows, versionKey)
	}
	if have > len(migrations) {
		return fmt.Errorf("records are of version %d, this program knows up to %d", have, len(migrations))
	}
	changed := map[string][]byte{}
	for key, v := range rows {
		var row T
		old := v
		for i := have; i < len(migrations) && err == nil; i++ {
			if v, err = migrations[i](v); err != nil {
				err = fmt.Errorf("migrate to version %d: %w", i+1, err)
			}
		}
		if err == nil {
			err = json.Unmarshal(v, &row)
		}
		if err != nil {
			t.damaged[key], err = err, nil
			t.db.keep(t.name, key, old)
			continue
		}
		t.rows[key] = row
		if have < len(migrations) {
			changed[key] = v
		}
	}
	if !versioned || have < len(migrations) {
		changed[versionKey] = t.version
	}
	t.db.adopt(t.name, t)
	for key, v := range changed {
		if err := t.db.write(t.name, key, v, false); err != nil {
			return err
		}
	}
	return nil
}

// take hands the records of a table to it.
func (d *DB) take(table string) map[string][]byte {
	rows := map[string][]byte{}
	d.mu.Lock()
	before := d.tables[table]
	d.mu.Unlock()
	if before != nil {
		defer before.lock()()
		before.dump(func(key string, value []byte) { rows[key] = value })
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for k, v := range d.raw {
		if k.table == table {
			rows[k.key] = v
		}
	}
	return rows
}

// keep keeps a record as it is in the file.
func (d *DB) keep(table, key string, value []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.raw[id{table, key}] = value
}

// adopt makes a table the owner of its records but those that it cannot read.
func (d *DB) adopt(name string, t interface {
	dumper
	unreadable(key string) bool
},
) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tables[name] = t
	for k := range d.raw {
		if k.table == name && !t.unreadable(k.key) {
			delete(d.raw, k)
		}
	}
}

func (t *Table[T]) unreadable(key string) bool { return t.damaged[key] != nil }

func (t *Table[T]) lock() (unlock func()) {
	t.mu.RLock()
	return t.mu.RUnlock
}

// dump yields the records for the file; the table is locked.
func (t *Table[T]) dump(yield func(key string, value []byte)) {
	yield(versionKey, t.version)
	for key, row := range t.rows {
		if v, err := json.Marshal(row); err == nil { // it was so when it was written
			yield(key, v)
		}
	}
}

// Damaged are the records that cannot be decoded, by key, and why. [Table.Delete] removes one, and [Table.Put] replaces
// it.
func (t *Table[T]) Damaged() map[string]error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return maps.Clone(t.damaged)
}

// Row is a record encoded for the places that it is written to.
type Row[T any] struct {
	value T
	json  []byte
}

// Encode encodes a record.
func Encode[T any](row T) (Row[T], error) {
	v, err := json.Marshal(row)
	if err != nil {
		return Row[T]{}, fmt.Errorf("encode record: %w", err)
	}
	return Row[T]{row, v}, nil
}

// Put writes the record of key. It fails with [ErrReadOnly] where records cannot be written.
func (t *Table[T]) Put(key string, row T) error {
	r, err := Encode(row)
	if err != nil {
		return err
	}
	return t.PutRow(key, r)
}

// Note is Put of what has happened already, whether it can be written or not: where it cannot, it is remembered, and
// written as soon as that works again.
func (t *Table[T]) Note(key string, row T) error {
	r, err := Encode(row)
	if err != nil {
		return err
	}
	return t.NoteRow(key, r)
}

// PutRow is [Table.Put] of what is encoded.
func (t *Table[T]) PutRow(key string, row Row[T]) error { return t.put(key, row, true) }

// NoteRow is [Table.Note] of what is encoded.
func (t *Table[T]) NoteRow(key string, row Row[T]) error { return t.put(key, row, false) }

func (t *Table[T]) put(key string, row Row[T], must bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.db.write(t.name, key, row.json, must); err != nil {
		return fmt.Errorf("write record %q: %w", key, err)
	}
	t.rows[key] = row.value
	t.readable(key)
	return nil
}

// readable forgets a damaged record; the caller holds mu.
func (t *Table[T]) readable(key string) {
	if t.damaged[key] == nil {
		return
	}
	delete(t.damaged, key)
	t.db.mu.Lock()
	delete(t.db.raw, id{t.name, key})
	t.db.mu.Unlock()
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

// Delete removes the record of key; it is no error when there is none. Where it cannot be written, that is remembered:
// who deletes a record has ended what it describes.
func (t *Table[T]) Delete(key string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.rows[key]; !ok && t.damaged[key] == nil {
		return nil
	}
	if err := t.db.write(t.name, key, nil, false); err != nil {
		return fmt.Errorf("delete record %q: %w", key, err)
	}
	delete(t.rows, key)
	t.readable(key)
	return nil
}

// All ranges over a copy of the table as it is now, in no order.
func (t *Table[T]) All() iter.Seq2[string, T] {
	t.mu.RLock()
	rows := maps.Clone(t.rows)
	t.mu.RUnlock()
	return maps.All(rows)
}
