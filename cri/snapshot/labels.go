package snapshot

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"

	"github.com/berth-node/berth/cri/store"
	"github.com/berth-node/berth/internal/atomicfile"
)

// label is the content of the file beside a snapshot's, by which it is one still when its record is lost. That of a
// layer is written again when the files are on the disk, so that it says that they are, too.
type label struct {
	Key, Parent string
	Kind        Kind   `json:",omitempty"` // "" = a layer
	Boot        string `json:",omitempty"` // it counts during this one only; "" = the files are on the disk
}

// maxLabel bounds what is read of one.
const maxLabel = 64 << 10

// labelName is the name of the file, which only layers had once.
const labelName = "layer"

// labels are those of all snapshots, by which records that were lost are restored.
type labels struct {
	dirs  directories
	boot  string
	table *store.Table[record]
	log   *slog.Logger
}

// writeDurable writes the label of a layer that is on the disk, unless it is gone.
func (s *labels) writeDurable(key string, id uint64) error {
	r, err := s.table.Get(key)
	if err != nil || r.ID != id {
		return nil // removed meanwhile
	}
	err = writeLabelAt(s.dirs.label(id), label{Key: key, Parent: r.Parent})
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
	return atomicfile.Write(path, b, 0o600)
}

// writeOwn writes the label of a container's snapshot, which counts during this boot as the snapshot does.
func (s *labels) writeOwn(key string, r record) error {
	dir := s.dirs.dir(r.ID)
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(s.dirs.root, 0o700); err == nil {
			err = os.Mkdir(dir, 0o755)
		}
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return s.rewriteOwn(key, r)
}

// rewriteOwn is writeOwn where there is a directory.
func (s *labels) rewriteOwn(key string, r record) error {
	return writeLabelAt(s.dirs.label(r.ID), label{Key: key, Parent: r.Parent, Kind: r.Kind, Boot: r.Boot})
}

// record is that of the snapshot with the number id; false where it is not known that its files are what they were.
func (s *labels) record(id uint64, l label) (record, bool) {
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

// whole says that a layer can be trusted. After a power cut, a file that was not synced may be there and be empty.
func (s *labels) whole(r record) bool {
	if !r.Durable && r.Boot != s.boot {
		return false
	}
	_, err := os.Lstat(s.dirs.files(r.ID))
	return err == nil
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

// damaged says that a directory has a label that cannot be read. An empty one is what a loss of power leaves of a file
// that was just written, as of the snapshots of that boot, which are over.
func (s *labels) damaged(id uint64) bool {
	path := s.dirs.label(id)
	_, err := readLabel(path)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return false
	}
	st, err := os.Lstat(path)
	return err != nil || st.Size() > 0
}

// restore takes directories for snapshots whose record is lost, and gives those that have none their label.
func (s *labels) restore() error {
	known := map[uint64]bool{}
	for key, r := range s.table.All() {
		known[r.ID] = true
		s.supply(key, r)
	}
	entries, err := os.ReadDir(s.dirs.root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("list snapshots: %w", err)
	}
	found := 0
	for _, e := range entries {
		id, ok := parseID(e.Name())
		if !ok || known[id] {
			continue
		}
		l, err := readLabel(s.dirs.label(id))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			s.log.Warn("directory of a snapshot cannot be told whose it is, and stays: delete it when nothing runs on it",
				"dir", s.dirs.dir(id), "error", err)
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
		found++
	}
	if found > 0 {
		s.log.Warn("snapshots have lost their records, and are found again by what is on the disk", "snapshots", found)
	}
	return nil
}

// supply writes the label of a snapshot that has none.
func (s *labels) supply(key string, r record) {
	if _, err := os.Lstat(s.dirs.label(r.ID)); !errors.Is(err, fs.ErrNotExist) {
		return
	}
	var err error
	switch {
	case r.Kind == KindLayer && r.Durable:
		err = s.writeDurable(key, r.ID)
	case r.Kind != KindLayer && r.Boot == s.boot:
		err = s.rewriteOwn(key, r) // one that a crash left without its directory is on its way out
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("snapshot would be lost with the records", "key", key, "error", err)
	}
}
