package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berth-node/berth/cri/store"
	"github.com/berth-node/berth/internal/filetree"
)

// record is what the store knows of a snapshot. The directory is named by a number, not by the key, so that the paths of
// many layers stay short enough for one mount.
type record struct {
	ID      uint64 `json:"id"`
	Parent  string `json:"parent,omitempty"`
	Kind    Kind   `json:"kind"`
	Boot    string `json:"boot"`              // boot ID of the time it was made
	Durable bool   `json:"durable,omitempty"` // a layer whose files are on the disk
	Usage   *Usage `json:"usage,omitempty"`   // of a layer, once counted
}

// shelf is what both implementations share: records, directories, their names and their end.
//
//	<root>/new/<id>/fs    a layer being filled
//	<root>/<id>/fs        the files of a snapshot
//	<root>/<id>/layer     which snapshot they are
//	<root>/<id>/work      what OverlayFS needs beside those of a writable one
//	<root>/trash/<id>     removed, being deleted
//
// A layer gets its record after the rename from new/ (until then it is not there), a container's snapshot before its
// directory (which Prepare makes again if a crash came between).
type shelf struct {
	root  string
	boot  string
	log   *slog.Logger
	table *store.Table[record]

	mu       sync.Mutex
	nextID   uint64
	children map[string]int      // snapshots that stand on a key
	pending  map[uint64]struct{} // layers being filled or committed by this process
	syncing  bool                // a sync is scheduled
	sweeping chan struct{}       // closed when the trash, which is being deleted, is; nil: it is not
	stuck    map[string]error    // what of the trash could not be deleted
	again    *time.Timer         // to try that again
	keys     map[string]*keyLock // of keys that somebody works on
}

type keyLock struct {
	sync.Mutex
	users int
}

func openShelf(root, name string, db *store.DB, log *slog.Logger) (*shelf, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	abs, err := filepath.Abs(filepath.Join(root, name))
	if err != nil {
		return nil, fmt.Errorf("open snapshots: %w", err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("read boot ID: %w", err)
	}
	s := &shelf{
		root: abs, boot: strings.TrimSpace(string(boot)), log: log,
		children: map[string]int{}, pending: map[uint64]struct{}{}, keys: map[string]*keyLock{},
	}
	if s.table, err = store.NewTable[record](db, "snapshots-"+name); err != nil {
		return nil, err
	}
	if err := s.load(); err != nil {
		return nil, err
	}
	return s, nil
}

// load counts children, finds the first free number, and forgets layers whose files are not, or not surely, there.
func (s *shelf) load() error {
	for key, r := range s.table.All() {
		if r.Kind == KindLayer && !s.whole(r) {
			s.log.Warn("layer is lost and must be unpacked again", "key", key, "dir", s.dir(r.ID))
			if err := s.table.Delete(key); err != nil {
				return err
			}
			continue
		}
		s.children[r.Parent]++
		s.nextID = max(s.nextID, r.ID)
	}
	if err := s.findAgain(); err != nil {
		return err
	}
	for _, d := range []string{".", "new", "trash"} {
		entries, err := os.ReadDir(filepath.Join(s.root, d))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("list snapshots: %w", err)
		}
		for _, e := range entries {
			if id, ok := parseID(e.Name()); ok {
				s.nextID = max(s.nextID, id)
			}
		}
	}
	return nil
}

// whole says that a layer can be trusted. After a power cut, a file that was not synced may be there and be empty.
func (s *shelf) whole(r record) bool {
	if !r.Durable && r.Boot != s.boot {
		return false
	}
	_, err := os.Lstat(s.files(r.ID))
	return err == nil
}

func parseID(name string) (uint64, bool) {
	id, err := strconv.ParseUint(name, 10, 64)
	return id, err == nil && strconv.FormatUint(id, 10) == name
}

func (s *shelf) dir(id uint64) string   { return filepath.Join(s.root, strconv.FormatUint(id, 10)) }
func (s *shelf) files(id uint64) string { return filepath.Join(s.dir(id), "fs") }
func (s *shelf) work(id uint64) string  { return filepath.Join(s.dir(id), "work") }

// lock keeps others from working on key until unlock is called.
func (s *shelf) lock(key string) (unlock func()) {
	s.mu.Lock()
	l := s.keys[key]
	if l == nil {
		l = &keyLock{}
		s.keys[key] = l
	}
	l.users++
	s.mu.Unlock()
	l.Lock()
	return func() {
		l.Unlock()
		s.mu.Lock()
		defer s.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(s.keys, key)
		}
	}
}

// chain returns the numbers of the layer key and all below it, the highest first.
func (s *shelf) chain(key string) ([]uint64, error) {
	var ids []uint64
	for key != "" {
		r, err := s.table.Get(key)
		if err != nil || r.Kind != KindLayer {
			return nil, fmt.Errorf("layer %s: %w", key, ErrNotFound)
		}
		ids = append(ids, r.ID)
		key = r.Parent
	}
	return ids, nil
}

// Exists says that the layer and all below it are committed.
func (s *shelf) Exists(key string) bool {
	ids, err := s.chain(key)
	return err == nil && len(ids) > 0
}

// add records the snapshot key of a container, unless it is there. The caller has locked key.
func (s *shelf) add(key, parent string, kind Kind) (record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, err := s.table.Get(key); err == nil {
		if r.Kind != kind || r.Parent != parent {
			return r, fmt.Errorf("as %s on %q, wanted as %s on %q: %w", r.Kind, r.Parent, kind, parent, ErrExists)
		}
		if r.Boot == s.boot {
			return r, nil
		}
		// What the last boot left was never synced and may be torn.
		if err := s.drop(key, r); err != nil {
			return r, err
		}
	}
	if _, err := s.chain(parent); err != nil {
		return record{}, err
	}
	s.nextID++
	r := record{ID: s.nextID, Parent: parent, Kind: kind, Boot: s.boot}
	if err := s.table.Put(key, r); err != nil {
		return r, err
	}
	s.children[parent]++
	return r, s.labelOwn(key, r)
}

// Remove drops a snapshot.
func (s *shelf) Remove(_ context.Context, key string) error {
	defer s.lock(key)()
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.table.Get(key)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if s.children[key] > 0 {
		return fmt.Errorf("remove snapshot %s: %w", key, ErrInUse)
	}
	if err := s.drop(key, r); err != nil {
		return fmt.Errorf("remove snapshot %s: %w", key, err)
	}
	return nil
}

// drop moves the files away and forgets the snapshot; the caller holds mu. A crash in between leaves a record without files,
// which means as much as no record: see load and Prepare.
func (s *shelf) drop(key string, r record) error {
	if err := s.discard(s.dir(r.ID)); err != nil {
		return err
	}
	if err := s.table.Delete(key); err != nil {
		return err
	}
	if s.children[r.Parent]--; s.children[r.Parent] == 0 {
		delete(s.children, r.Parent)
	}
	return nil
}

// discard moves a directory to the trash and has the trash emptied; the caller holds mu.
func (s *shelf) discard(dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	err := os.MkdirAll(s.trash(), 0o700)
	if err == nil {
		err = os.Rename(dir, filepath.Join(s.trash(), filepath.Base(dir)))
	}
	if err != nil {
		return err
	}
	s.startSweep()
	return nil
}

// sweepAgain is how long after a failure the trash is tried again.
const sweepAgain = 10 * time.Minute

// startSweep has the trash emptied; the caller holds mu.
func (s *shelf) startSweep() {
	if s.sweeping == nil {
		s.sweeping = make(chan struct{})
		go s.sweep()
	}
}

// sweep deletes what is in the trash and ends. What cannot be deleted now takes disk space, and nothing else: it is told once and tried
// again later.
func (s *shelf) sweep() {
	for {
		failed := s.emptyTrash()
		s.mu.Lock()
		left, err := os.ReadDir(s.trash())
		if err != nil || len(left) == len(failed) {
			close(s.sweeping)
			s.sweeping, s.stuck = nil, failed
			if len(failed) > 0 && s.again == nil {
				s.again = time.AfterFunc(sweepAgain, func() {
					s.mu.Lock()
					defer s.mu.Unlock()
					s.again = nil
					s.startSweep()
				})
			}
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
	}
}

func (s *shelf) trash() string { return filepath.Join(s.root, "trash") }

// emptyTrash returns what could not be deleted, by name.
func (s *shelf) emptyTrash() map[string]error {
	failed := map[string]error{}
	entries, err := os.ReadDir(s.trash())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("removed snapshots take disk space", "error", err)
	}
	for _, e := range entries {
		if err := filetree.RemoveAll(context.Background(), filepath.Join(s.trash(), e.Name())); err != nil {
			failed[e.Name()] = err
			s.mu.Lock()
			_, told := s.stuck[e.Name()]
			s.mu.Unlock()
			if !told {
				s.log.Warn("removed snapshot takes disk space until it can be deleted", "error", err)
			}
		}
	}
	return failed
}

// Swept waits until nothing is being deleted.
func (s *shelf) Swept(ctx context.Context) error {
	s.mu.Lock()
	sweeping := s.sweeping
	s.mu.Unlock()
	if sweeping != nil {
		select {
		case <-sweeping:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, err := range s.stuck {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// List returns all snapshots in the order of their keys.
func (s *shelf) List() []Info {
	var all []Info
	for key, r := range s.table.All() {
		i := Info{Key: key, Parent: r.Parent, Kind: r.Kind}
		if r.Kind != KindView {
			i.Dir = s.files(r.ID)
		}
		all = append(all, i)
	}
	slices.SortFunc(all, func(a, b Info) int { return cmp.Compare(a.Key, b.Key) })
	return all
}
