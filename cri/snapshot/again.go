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

// label is the content of the file beside a layer's, by which it is a layer still when its record is lost. It is written when the files
// are on the disk, so that it says that they are, too.
type label struct{ Key, Parent string }

// maxLabel bounds what is read of one.
const maxLabel = 64 << 10

func (s *shelf) labelPath(id uint64) string { return filepath.Join(s.dir(id), "layer") }

// writeLabel writes the file of a layer, unless it is gone.
func (s *shelf) writeLabel(key string, id uint64) error {
	r, err := s.table.Get(key)
	if err != nil || r.ID != id {
		return nil //nolint:nilerr // removed meanwhile
	}
	b, err := json.Marshal(label{Key: key, Parent: r.Parent})
	if err != nil {
		return err
	}
	part := s.labelPath(id) + ".new"
	err = os.WriteFile(part, b, 0o600)
	if err == nil {
		err = os.Rename(part, s.labelPath(id))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
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
		err = errors.New("it names no layer")
	}
	return l, err
}

// findAgain takes directories for layers whose record is lost, and gives layers that have none their file.
func (s *shelf) findAgain() error {
	known := map[uint64]bool{}
	for key, r := range s.table.All() {
		known[r.ID] = true
		if _, err := os.Lstat(s.labelPath(r.ID)); r.Kind == KindLayer && r.Durable && errors.Is(err, fs.ErrNotExist) {
			if err := s.writeLabel(key, r.ID); err != nil {
				s.log.Warn("layer would be lost with the records", "key", key, "error", err)
			}
		}
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
			s.log.Warn("directory of a layer cannot be told whose it is", "dir", s.dir(id), "error", err)
			continue
		}
		if _, err := s.table.Get(l.Key); err == nil {
			continue // there is another by now
		}
		r := record{ID: id, Parent: l.Parent, Kind: KindLayer, Boot: s.boot, Durable: true}
		if !s.whole(r) {
			continue
		}
		if err := s.table.Note(l.Key, r); err != nil {
			return err
		}
		s.children[r.Parent]++
		found++
	}
	if found > 0 {
		s.log.Warn("layers have lost their records, and are found again by what is on the disk", "layers", found)
	}
	return nil
}
