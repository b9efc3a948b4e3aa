package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/berth-node/berth/cri/store"
)

// record is what the store knows of a snapshot. The directory is named by a number, not by the key, so that the paths
// of many layers stay short enough for one mount.
type record struct {
	ID      uint64 `json:"id"`
	Parent  string `json:"parent,omitempty"`
	Kind    Kind   `json:"kind"`
	Boot    string `json:"boot"`              // boot ID of the time it was made
	Durable bool   `json:"durable,omitempty"` // a layer whose files are on the disk
	Usage   *Usage `json:"usage,omitempty"`   // of a layer, once counted
}

// directories are the names of what is below the root of a snapshotter:
//
//	<root>/new/<id>/fs    a layer being filled
//	<root>/<id>/fs        the files of a snapshot
//	<root>/<id>/layer     which snapshot they are
//	<root>/<id>/work      what OverlayFS needs beside those of a writable one
//	<root>/trash/<id>     removed, being deleted
type directories struct{ root string }

func (d directories) dir(id uint64) string   { return filepath.Join(d.root, strconv.FormatUint(id, 10)) }
func (d directories) files(id uint64) string { return filepath.Join(d.dir(id), "fs") }
func (d directories) label(id uint64) string { return filepath.Join(d.dir(id), labelName) }
func (d directories) work(id uint64) string  { return filepath.Join(d.dir(id), "work") }
func (d directories) unfinished() string     { return filepath.Join(d.root, "new") }
func (d directories) trash() string          { return filepath.Join(d.root, "trash") }

// bindView is a read-only mount of the highest layer alone, or of an empty directory.
func (d directories) bindView(id uint64, layers []uint64) ([]Mount, error) {
	dir := d.files(id)
	if len(layers) > 0 {
		dir = d.files(layers[0])
	} else if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return []Mount{{Type: "bind", Source: dir, Options: []string{"ro"}}}, nil
}

// parseID is the number that a directory has for its name.
func parseID(name string) (uint64, bool) {
	id, err := strconv.ParseUint(name, 10, 64)
	return id, err == nil && strconv.FormatUint(id, 10) == name
}

// driver is how the files of a snapshot come about and are mounted: stacked, or copied. Layers are numbers, the highest
// first.
type driver interface {
	name() string
	// independent: see [Snapshotter.Independent].
	independent() bool
	whiteouts() Whiteouts
	// fill puts into a new layer's directory what it has of the layers below it.
	fill(ctx context.Context, dir string, layers []uint64) error
	// writable makes the files of a writable snapshot, unless they are there, and says how to mount them.
	writable(ctx context.Context, id uint64, layers []uint64) ([]Mount, error)
	view(id uint64, layers []uint64) ([]Mount, error)
	// base shows the layers below a snapshot, of which there is one at least, as one directory until done is called.
	base(id uint64, layers []uint64) (dir string, done func() error, err error)
}

// snapshotter is the [Snapshotter] of both drivers: records, and the directories that they are of.
//
// A layer gets its record after the rename from new/ (until then it is not there), a container's snapshot before its
// directory (which Prepare makes again if a crash came between).
type snapshotter struct {
	dirs   directories
	driver driver
	boot   string
	log    *slog.Logger
	table  *store.Table[record]
	labels *labels
	trash  *trash
	keys   keyLocks

	mu       sync.Mutex
	nextID   uint64
	children map[string]int      // snapshots that stand on a key
	pending  map[uint64]struct{} // layers being filled or committed by this process
	syncing  bool                // a sync is scheduled
}

// open opens the snapshots below root that a driver has made.
func open(root string, db *store.DB, log *slog.Logger, newDriver func(directories) driver) (*snapshotter, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	name := newDriver(directories{}).name()
	abs, err := filepath.Abs(filepath.Join(root, name))
	if err != nil {
		return nil, fmt.Errorf("open snapshots: %w", err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("read boot ID: %w", err)
	}
	dirs := directories{abs}
	s := &snapshotter{
		dirs: dirs, driver: newDriver(dirs), boot: strings.TrimSpace(string(boot)), log: log, trash: &trash{dir: dirs.trash(), log: log},
		children: map[string]int{}, pending: map[uint64]struct{}{},
	}
	if s.table, err = store.NewTable[record](db, "snapshots-"+name); err != nil {
		return nil, err
	}
	s.labels = &labels{dirs, s.boot, s.table, log}
	if err := s.load(); err != nil {
		return nil, err
	}
	return s, nil
}

// load counts children, finds the first free number, and forgets layers whose files are not, or not surely, there.
func (s *snapshotter) load() error {
	for key, r := range s.table.All() {
		if r.Kind == KindLayer && !s.labels.whole(r) {
			s.log.Warn("layer is lost and must be unpacked again", "key", key, "dir", s.dirs.dir(r.ID))
			if err := s.table.Delete(key); err != nil {
				return err
			}
		}
	}
	if err := s.labels.restore(); err != nil {
		return err
	}
	for _, r := range s.table.All() {
		s.children[r.Parent]++
		s.nextID = max(s.nextID, r.ID)
	}
	for _, d := range []string{s.dirs.root, s.dirs.unfinished(), s.dirs.trash()} {
		entries, err := os.ReadDir(d)
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

// Name is that of the driver.
func (s *snapshotter) Name() string { return s.driver.name() }

// Independent says that a layer may be filled and committed before its parent is there.
func (s *snapshotter) Independent() bool { return s.driver.independent() }

// chain returns the numbers of the layer key and all below it, the highest first.
func (s *snapshotter) chain(key string) ([]uint64, error) {
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
func (s *snapshotter) Exists(key string) bool {
	ids, err := s.chain(key)
	return err == nil && len(ids) > 0
}

// Begin starts a layer.
func (s *snapshotter) Begin(ctx context.Context, key, parent string) (Layer, error) {
	var below []uint64
	if !s.driver.independent() {
		var err error
		if below, err = s.chain(parent); err != nil {
			return nil, fmt.Errorf("begin layer %s: %w", key, err)
		}
	}
	l, err := s.begin(key, parent)
	if err != nil {
		return nil, fmt.Errorf("begin layer %s: %w", key, err)
	}
	if err := s.driver.fill(ctx, l.Dir(), below); err != nil {
		return nil, errors.Join(fmt.Errorf("begin layer %s: %w", key, err), l.Abort())
	}
	return l, nil
}

// Prepare makes the writable snapshot of a container.
func (s *snapshotter) Prepare(ctx context.Context, key, parent string) ([]Mount, error) {
	mounts, err := s.make(key, parent, KindActive, func(id uint64, layers []uint64) ([]Mount, error) {
		return s.driver.writable(ctx, id, layers)
	})
	if err != nil {
		return nil, fmt.Errorf("prepare snapshot %s: %w", key, err)
	}
	return mounts, nil
}

// View makes a look at a layer.
func (s *snapshotter) View(_ context.Context, key, parent string) ([]Mount, error) {
	mounts, err := s.make(key, parent, KindView, s.driver.view)
	if err != nil {
		return nil, fmt.Errorf("view snapshot %s: %w", key, err)
	}
	return mounts, nil
}

// make records the snapshot key, unless it is there, and has its files made.
func (s *snapshotter) make(key, parent string, kind Kind, fn func(id uint64, layers []uint64) ([]Mount, error)) ([]Mount, error) {
	defer s.keys.lock(key)()
	r, added, err := s.register(key, parent, kind)
	if err == nil && added {
		// Nobody else comes near its directory, so that others need not wait for the disk.
		err = s.labels.writeOwn(key, r)
	}
	if err != nil {
		return nil, err
	}
	layers, err := s.chain(parent)
	if err != nil {
		return nil, err
	}
	return fn(r.ID, layers)
}

// register writes the record of a container's snapshot, if there is none of this boot.
func (s *snapshotter) register(key, parent string, kind Kind) (r record, added bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, err := s.table.Get(key); err == nil {
		if r.Kind != kind || r.Parent != parent {
			return r, false, fmt.Errorf("as %s on %q, wanted as %s on %q: %w", r.Kind, r.Parent, kind, parent, ErrExists)
		}
		if r.Boot == s.boot {
			return r, false, nil
		}
		// What the last boot left was never synced and may be torn.
		if err := s.drop(key, r); err != nil {
			return r, false, err
		}
	}
	if _, err := s.chain(parent); err != nil {
		return record{}, false, err
	}
	s.nextID++
	r = record{ID: s.nextID, Parent: parent, Kind: kind, Boot: s.boot}
	if err := s.table.Put(key, r); err != nil {
		return r, false, err
	}
	s.children[parent]++
	return r, true, nil
}

// Remove drops a snapshot.
func (s *snapshotter) Remove(_ context.Context, key string) error {
	defer s.keys.lock(key)()
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

// drop moves the files away and forgets the snapshot; the caller holds mu. A crash in between leaves a record without
// files, which means as much as no record: see load and Prepare.
func (s *snapshotter) drop(key string, r record) error {
	if err := s.trash.discard(s.dirs.dir(r.ID)); err != nil {
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

// Diff writes what differs from the layers below.
func (s *snapshotter) Diff(ctx context.Context, key string, w io.Writer) (deleted []string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("compare snapshot %s: %w", key, err)
		}
	}()
	r, err := s.table.Get(key)
	if err != nil || r.Kind != KindActive {
		return nil, ErrNotFound
	}
	layers, err := s.chain(r.Parent)
	if err != nil {
		return nil, err
	}
	base := ""
	if len(layers) > 0 {
		dir, done, berr := s.driver.base(r.ID, layers)
		if berr != nil {
			return nil, berr
		}
		defer func() { err = errors.Join(err, done()) }()
		base = dir
	}
	return writeDiff(ctx, s.dirs.files(r.ID), base, s.driver.whiteouts() == WhiteoutsApply, w)
}

// Swept waits until nothing is being deleted.
func (s *snapshotter) Swept(ctx context.Context) error { return s.trash.wait(ctx) }

// List returns all snapshots in the order of their keys.
func (s *snapshotter) List() []Info {
	var all []Info
	for key, r := range s.table.All() {
		i := Info{Key: key, Parent: r.Parent, Kind: r.Kind}
		if r.Kind != KindView {
			i.Dir = s.dirs.files(r.ID)
		}
		all = append(all, i)
	}
	slices.SortFunc(all, func(a, b Info) int { return cmp.Compare(a.Key, b.Key) })
	return all
}
