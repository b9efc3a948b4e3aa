package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/berth-node/berth/internal/atomicfile"
)

// maxRecord bounds a file of a record.
const maxRecord = 1 << 20

const suffix = ".json"

// ids are what records are called by; nothing else is ever part of a path.
var ids = regexp.MustCompile(`^[vesg]-[0-9a-f]{32}$`)

// IsID says whether a string is an ID as the driver makes them.
func IsID(id string) bool { return ids.MatchString(id) }

// ErrDamaged says that there is a record that cannot be read.
var ErrDamaged = errors.New("its record cannot be read")

// Keyed is something with an ID.
type Keyed interface{ Key() string }

// Table has the records of one kind, in memory and each in a file.
type Table[T Keyed] struct {
	dir    string
	synced bool // they outlive a loss of power
	step   func(name string)

	mu      sync.RWMutex
	rows    map[string]T
	damaged map[string]string // ID to where the file is now
}

// Open reads the records in dir, which is made unless it is there. A file that cannot be read as a record is moved to
// the directory quarantine and keeps its ID: what it tells of is somebody's. warn is told of each.
func Open[T Keyed](dir, quarantine string, synced bool, warn func(file string, err error)) (*Table[T], error) {
	t := &Table[T]{dir: dir, synced: synced, rows: map[string]T{}, damaged: map[string]string{}}
	for _, d := range []string{dir, quarantine} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("make directory of records: %w", err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list records: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if strings.HasSuffix(e.Name(), atomicfile.Part) { // of a writer that was killed
			_ = os.Remove(path)
			continue
		}
		row, err := read[T](path)
		if err == nil && row.Key()+suffix != e.Name() {
			err = fmt.Errorf("it is the record of %q", row.Key())
		}
		if err == nil {
			t.rows[row.Key()] = row
			continue
		}
		kept := filepath.Join(quarantine, filepath.Base(dir)+"-"+e.Name())
		if moved := os.Rename(path, kept); moved != nil {
			err, kept = errors.Join(err, moved), path
		}
		warn(kept, err)
	}
	return t, t.remember(quarantine)
}

// remember has the IDs of what was put into quarantine, at any time, be taken.
func (t *Table[T]) remember(quarantine string) error {
	entries, err := os.ReadDir(quarantine)
	if err != nil {
		return fmt.Errorf("list quarantine: %w", err)
	}
	for _, e := range entries {
		if name, ok := strings.CutPrefix(e.Name(), filepath.Base(t.dir)+"-"); ok {
			t.damaged[strings.TrimSuffix(name, suffix)] = filepath.Join(quarantine, e.Name())
		}
	}
	return nil
}

func read[T Keyed](path string) (row T, err error) {
	f, err := os.Open(path)
	if err != nil {
		return row, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return row, errors.Join(err, errors.New("it is no file"))
	}
	data, err := io.ReadAll(io.LimitReader(f, maxRecord+1))
	if err != nil {
		return row, err
	}
	return decode[T](data)
}

// decode takes the text of a record.
func decode[T Keyed](data []byte) (row T, err error) {
	if len(data) > maxRecord {
		return row, errors.New("it is too large")
	}
	d := json.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(&row); err != nil {
		return row, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return row, errors.New("there is something behind it")
	}
	if !IsID(row.Key()) {
		return row, fmt.Errorf("%q is no ID", row.Key())
	}
	return row, nil
}

// Hear has step be told before each record is written or removed; nil: nobody is.
func (t *Table[T]) Hear(step func(name string)) { t.step = step }

// Get is the record with an ID. It fails with [fs.ErrNotExist] when there is none, and with [ErrDamaged].
func (t *Table[T]) Get(id string) (row T, err error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if file := t.damaged[id]; file != "" {
		return row, fmt.Errorf("%s: %w: %s", id, ErrDamaged, file)
	}
	row, ok := t.rows[id]
	if !ok {
		return row, fs.ErrNotExist
	}
	return row, nil
}

// Put writes a record, over the one with the same ID.
func (t *Table[T]) Put(row T) error {
	id := row.Key()
	if !IsID(id) {
		return fmt.Errorf("write record: %q is no ID", id)
	}
	data, err := json.Marshal(row)
	if err != nil {
		return fmt.Errorf("write record of %s: %w", id, err)
	}
	if t.step != nil {
		t.step("write record of " + id)
	}
	write := atomicfile.Write
	if t.synced {
		write = atomicfile.WriteSynced
	}
	if err := write(filepath.Join(t.dir, id+suffix), data, 0o600); err != nil {
		return fmt.Errorf("write record of %s: %w", id, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows[id] = row
	return nil
}

// Delete removes a record; it is no error when there is none.
func (t *Table[T]) Delete(id string) error {
	if !IsID(id) {
		return nil
	}
	if t.step != nil {
		t.step("remove record of " + id)
	}
	if err := os.Remove(filepath.Join(t.dir, id+suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove record of %s: %w", id, err)
	}
	if t.synced {
		if err := atomicfile.SyncDir(t.dir); err != nil {
			return fmt.Errorf("remove record of %s: %w", id, err)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.rows, id)
	return nil
}

// All are the records, by ID.
func (t *Table[T]) All() []T {
	t.mu.RLock()
	defer t.mu.RUnlock()
	out := make([]T, 0, len(t.rows))
	for _, id := range slices.Sorted(maps.Keys(t.rows)) {
		out = append(out, t.rows[id])
	}
	return out
}
