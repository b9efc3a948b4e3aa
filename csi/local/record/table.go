package record

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
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

const (
	suffix = ".json"
	// leaving is the suffix of a record's file from when the thing is being removed. A file gets another name also on a
	// disk that is full.
	leaving = ".leaving"
)

// ids are what records are called by; nothing else is ever part of a path.
var ids = regexp.MustCompile(`^[vesg]-[0-9a-f]{32}$`)

// IsID says whether a string is an ID as the driver makes them.
func IsID(id string) bool { return ids.MatchString(id) }

// ErrDamaged says that there is a record that cannot be read.
var ErrDamaged = errors.New("its record cannot be read")

// Keyed is something with an ID.
type Keyed interface{ Key() string }

// Row is what a table has.
type Row[T any] interface {
	Keyed
	Left() T      // it while it is being removed
	Check() error // what cannot be
}

// Table has the records of one kind, in memory and each in a file.
type Table[T Row[T]] struct {
	dir    string
	synced bool // they outlive a loss of power, and what they tell of is known by nothing else
	step   func(name string)

	mu      sync.RWMutex
	rows    map[string]T
	damaged map[string]string // ID to why there is no row
}

// Open reads the records in dir, which is made unless it is there. With a quarantine they outlive a loss of power, and
// a file that cannot be read as a record is moved there and keeps its ID: what it tells of is somebody's. Without one
// they tell of what is known by other means, too, and such a file is removed. warn is told of each.
func Open[T Row[T]](dir, quarantine string, warn func(file string, err error)) (*Table[T], error) {
	t := &Table[T]{dir: dir, synced: quarantine != "", rows: map[string]T{}, damaged: map[string]string{}}
	for _, d := range []string{dir, quarantine} {
		if d == "" {
			continue
		}
		if err := atomicfile.MkdirSynced(d, 0o700); err != nil {
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
		switch {
		case err != nil:
		case row.Key()+suffix == e.Name():
			t.rows[row.Key()] = row
			continue
		case row.Key()+leaving == e.Name():
			t.rows[row.Key()] = row.Left()
			continue
		default:
			err = fmt.Errorf("it is the record of %q", row.Key())
		}
		if !t.synced {
			warn(path, errors.Join(err, os.Remove(path)))
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
	if !t.synced {
		return nil
	}
	entries, err := os.ReadDir(quarantine)
	if err != nil {
		return fmt.Errorf("list quarantine: %w", err)
	}
	for _, e := range entries {
		if name, ok := strings.CutPrefix(e.Name(), filepath.Base(t.dir)+"-"); ok {
			id := strings.TrimSuffix(strings.TrimSuffix(name, suffix), leaving)
			t.damaged[id] = filepath.Join(quarantine, e.Name())
		}
	}
	return nil
}

func read[T Row[T]](path string) (row T, err error) {
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

// encode is the text of a record: the row as JSON on one line, and its SHA-256 on the next. A bit that has turned over
// on the disk may well leave JSON behind, by which something else would be done.
func encode[T Row[T]](row T) ([]byte, error) {
	data, err := json.Marshal(row)
	if err == nil && len(data) > maxRecord-sumLine { // it could not be read again
		err = fmt.Errorf("it has %d bytes, and may have %d", len(data), maxRecord-sumLine)
	}
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(data, "\n%s\n", sumOf(data)), nil
}

// sumLine is what the sum takes with the ends of both lines, in bytes.
const sumLine = 2*sha256.Size + 2

func sumOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// decode takes the text of a record. Versions before this one wrote no sum. What is behind the two lines is of a longer
// record that was written over by who was killed before it was cut off.
func decode[T Row[T]](data []byte) (row T, err error) {
	if len(data) > maxRecord {
		return row, errors.New("it is too large")
	}
	text, rest, summed := bytes.Cut(data, []byte("\n"))
	if sum, _, whole := bytes.Cut(rest, []byte("\n")); summed && (!whole || string(sum) != sumOf(text)) {
		return row, errors.New("it is not what was written: its sum is another")
	}
	if err := json.Unmarshal(text, &row); err != nil {
		return row, err
	}
	if !IsID(row.Key()) {
		return row, fmt.Errorf("%q is no ID", row.Key())
	}
	return row, row.Check()
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

// Has says whether an ID is taken.
func (t *Table[T]) Has(id string) bool {
	_, err := t.Get(id)
	return !errors.Is(err, fs.ErrNotExist)
}

// Put writes a record, over the one with the same ID.
func (t *Table[T]) Put(row T) error {
	id := row.Key()
	if !IsID(id) {
		return fmt.Errorf("write record: %q is no ID", id)
	}
	data, err := encode(row)
	if err != nil {
		return fmt.Errorf("write record of %s: %w", id, err)
	}
	t.hear("write record of " + id)
	write := atomicfile.WriteSynced
	if !t.synced {
		// A page is written as a whole, also by who is killed at it.
		if write = atomicfile.Over; len(data) > os.Getpagesize() {
			write = atomicfile.Write
		}
	}
	if err := write(filepath.Join(t.dir, id+suffix), data, 0o600); err != nil {
		return fmt.Errorf("write record of %s: %w", id, err)
	}
	t.Hold(row)
	return nil
}

// Hold is Put without a file: the row is known as long as this process lives, and the file, if there is one, is what it
// was.
func (t *Table[T]) Hold(row T) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows[row.Key()] = row
}

// Miss has an ID be taken of which there is no record, and should be one.
func (t *Table[T]) Miss(id, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.damaged[id] = why
}

// Leave has a record tell from now on that the thing is being removed. It takes no room on the disk, which may be full.
func (t *Table[T]) Leave(id string) error {
	row, err := t.Get(id)
	if err != nil {
		return err
	}
	t.hear("leave record of " + id)
	path := filepath.Join(t.dir, id)
	if err := os.Rename(path+suffix, path+leaving); err != nil && !errors.Is(err, fs.ErrNotExist) { // it is leaving
		return fmt.Errorf("leave record of %s: %w", id, err)
	}
	if err := t.sync(); err != nil {
		return fmt.Errorf("leave record of %s: %w", id, err)
	}
	t.Hold(row.Left())
	return nil
}

// Delete removes a record; it is no error when there is none.
func (t *Table[T]) Delete(id string) error {
	if !IsID(id) {
		return nil
	}
	t.hear("remove record of " + id)
	for _, s := range []string{suffix, leaving} {
		if err := os.Remove(filepath.Join(t.dir, id+s)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove record of %s: %w", id, err)
		}
	}
	if err := t.sync(); err != nil {
		return fmt.Errorf("remove record of %s: %w", id, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.rows, id)
	return nil
}

func (t *Table[T]) sync() error {
	if !t.synced {
		return nil
	}
	return atomicfile.SyncDir(t.dir)
}

func (t *Table[T]) hear(step string) {
	if t.step != nil {
		t.step(step)
	}
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
