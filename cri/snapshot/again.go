package snapshot

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// label is the content of the file beside a snapshot's, by which it is one still when its record is lost. That of a layer is written again
// when the files are on the disk, so that it says that they are, too.
type label struct {
	Key, Parent string
	Kind        Kind   `json:",omitempty"` // "" = a layer
	Boot        string `json:",omitempty"` // it counts during this one only; "" = the files are on the disk
}

// maxLabel bounds what is read of one.
const maxLabel = 64 << 10

func (s *shelf) labelPath(id uint64) string { return filepath.Join(s.dir(id), labelName) }

// labelName is the name of the file, which only layers had once.
const labelName = "layer"

// writeLabel writes the file of a layer that is on the disk, unless it is gone.
func (s *shelf) writeLabel(key string, id uint64) error {
	r, err := s.table.Get(key)
	if err != nil || r.ID != id {
		return nil // removed meanwhile
	}
	part := s.labelPath(id) + ".new"
	if err = writeLabelAt(part, label{Key: key, Parent: r.Parent}); err == nil {
		err = os.Rename(part, s.labelPath(id))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func writeLabelAt(path string, l label) error {
	b, err := json.Marshal(l)
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o600)
}

// labelOwn writes the file of a container's snapshot, which counts during this boot as the snapshot does.
func (s *shelf) labelOwn(key string, r record) error {
	err := os.Mkdir(s.dir(r.ID), 0o755)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(s.root, 0o700); err == nil {
			err = os.Mkdir(s.dir(r.ID), 0o755)
		}
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return s.labelAgain(key, r)
}

func (s *shelf) labelAgain(key string, r record) error {
	return writeLabelAt(s.labelPath(r.ID), label{Key: key, Parent: r.Parent, Kind: r.Kind, Boot: r.Boot})
}

// record is that of the snapshot with the number id; false where it is not known that its files are what they were.
func (s *shelf) record(id uint64, l label) (record, bool) {
	r := record{ID: id, Parent: l.Parent, Kind: l.Kind, Boot: l.Boot, Durable: l.Boot == ""}
	if r.Kind == "" {
		r.Kind = KindLayer
	}
	if r.Durable {
		r.Boot = s.boot
	}
	if r.Kind == KindLayer {
		return r, s.whole(r)
	}
	return r, l.Boot == s.boot
}

func readLabel(path string) (l label, err error) {
	f, err := os.Open(path)
	if err != nil {
		return l, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxLabel))
	if err == nil {
		err = json.Unmarshal(b, &l)
	}
	if err == nil && l.Key == "" {
		err = errors.New("it names no snapshot")
	}
	return l, err
}

// findAgain takes directories for snapshots whose record is lost, and gives those that have none their file.
func (s *shelf) findAgain() error {
	known := map[uint64]bool{}
	for key, r := range s.table.All() {
		known[r.ID] = true
		s.supplyLabel(key, r)
	}
	entries, err := os.ReadDir(s.root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("list snapshots: %w", err)
	}
	found := 0
	for _, e := range entries {
		id, ok := parseID(e.Name())
		if !ok || known[id] {
			continue
		}
		l, err := readLabel(s.labelPath(id))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			s.log.Warn("directory of a snapshot cannot be told whose it is", "dir", s.dir(id), "error", err)
			continue
		}
		if _, err := s.table.Get(l.Key); err == nil {
			continue // there is another by now
		}
		r, ok := s.record(id, l)
		if !ok {
			continue
		}
		if err := s.table.Note(l.Key, r); err != nil {
			return err
		}
		s.children[r.Parent]++
		found++
	}
	if found > 0 {
		s.log.Warn("snapshots have lost their records, and are found again by what is on the disk", "snapshots", found)
	}
	return nil
}

// supplyLabel writes the file of a snapshot that has none.
func (s *shelf) supplyLabel(key string, r record) {
	if _, err := os.Lstat(s.labelPath(r.ID)); !errors.Is(err, fs.ErrNotExist) {
		return
	}
	var err error
	switch {
	case r.Kind == KindLayer && r.Durable:
		err = s.writeLabel(key, r.ID)
	case r.Kind != KindLayer && r.Boot == s.boot:
		err = s.labelAgain(key, r) // one that a crash left without its directory is on its way out
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("snapshot would be lost with the records", "key", key, "error", err)
	}
}
