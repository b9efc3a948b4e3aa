package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// syncDelay is how long after a Commit its files are written to the disk, so that the layers of one image are written
// together.
const syncDelay = 2 * time.Second

// layer is a directory being filled, below new/.
type layer struct {
	of          *snapshotter
	id          uint64
	key, parent string
	done        bool
}

// begin makes the directory of a new layer. It gets no record: being in new/ says that it is unfinished.
func (s *snapshotter) begin(key, parent string) (*layer, error) {
	s.mu.Lock()
	if _, err := s.table.Get(key); err == nil {
		s.mu.Unlock()
		return nil, ErrExists
	}
	s.nextID++
	l := &layer{of: s, id: s.nextID, key: key, parent: parent}
	s.pending[l.id] = struct{}{}
	s.mu.Unlock()
	if err := os.MkdirAll(filepath.Dir(l.top()), 0o700); err != nil {
		return nil, err
	}
	if err := s.trash.make(); err != nil {
		return nil, err
	}
	// 0755 is what a layer without an entry for its root gets; the mode of the pod's root directory comes from here.
	for _, d := range []string{l.top(), l.Dir()} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return nil, err
		}
	}
	return l, os.Chmod(l.Dir(), 0o755) // whatever the umask
}

func (l *layer) top() string {
	return filepath.Join(l.of.dirs.unfinished(), strconv.FormatUint(l.id, 10))
}

// Dir is where the files of the layer go.
func (l *layer) Dir() string { return filepath.Join(l.top(), "fs") }

// Whiteouts says how deletions are written.
func (l *layer) Whiteouts() Whiteouts { return l.of.driver.whiteouts() }

// Merged shows the layer on top of those below it.
func (l *layer) Merged() (string, func() error, error) {
	if l.Whiteouts() == WhiteoutsApply {
		return l.Dir(), func() error { return nil }, nil
	}
	layers, err := l.of.chain(l.parent)
	if err != nil {
		return "", nil, fmt.Errorf("merge layer %s: %w", l.key, err)
	}
	work := filepath.Join(l.top(), "work")
	for _, d := range []string{work, filepath.Join(work, "at")} {
		if err := os.Mkdir(d, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", nil, fmt.Errorf("merge layer %s: %w", l.key, err)
		}
	}
	o := &overlay{l.of.dirs}
	f, err := o.mount(layers, "upperdir="+l.Dir(), "workdir="+work).detached(filepath.Join(work, "at"))
	if err != nil {
		return "", nil, fmt.Errorf("merge layer %s: %w", l.key, err)
	}
	done := func() error { return errors.Join(f.Close(), os.RemoveAll(work)) }
	return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())), done, nil
}

// Commit makes the layer a snapshot.
func (l *layer) Commit(ctx context.Context) error {
	s := l.of
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("commit layer %s: %w", l.key, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.done {
		return fmt.Errorf("commit layer %s: ended already", l.key)
	}
	if _, err := s.table.Get(l.key); err == nil {
		l.end()
		return s.trash.discard(l.top())
	}
	err := writeLabelAt(filepath.Join(l.top(), labelName), label{Key: l.key, Parent: l.parent, Boot: s.boot})
	if err == nil {
		err = os.Rename(l.top(), s.dirs.dir(l.id))
	}
	if err != nil {
		return fmt.Errorf("commit layer %s: %w", l.key, err)
	}
	if err := s.table.Put(l.key, record{ID: l.id, Parent: l.parent, Kind: KindLayer, Boot: s.boot}); err != nil {
		return fmt.Errorf("commit layer %s: %w", l.key, err)
	}
	s.children[l.parent]++
	l.end()
	if !s.syncing {
		s.syncing = true
		time.AfterFunc(syncDelay, func() {
			if err := s.Sync(context.Background()); err != nil {
				s.log.Warn("layers would not survive a power cut", "error", err)
			}
		})
	}
	return nil
}

// end marks the layer as no longer being filled; the caller holds the snapshotter's mu.
func (l *layer) end() {
	l.done = true
	delete(l.of.pending, l.id)
}

// Abort drops the layer.
func (l *layer) Abort() error {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	if l.done {
		return nil
	}
	l.end()
	// After a Commit that failed at its record, the directory is at its last place already.
	for _, dir := range []string{l.top(), l.of.dirs.dir(l.id)} {
		if err := l.of.trash.discard(dir); err != nil {
			return fmt.Errorf("abort layer %s: %w", l.key, err)
		}
	}
	return nil
}

// Sync makes all committed layers survive a power cut: first the files, then the mark in the record that says so.
func (s *snapshotter) Sync(context.Context) error {
	s.mu.Lock()
	s.syncing = false
	s.mu.Unlock()
	fresh := map[string]uint64{}
	for key, r := range s.table.All() {
		if r.Kind == KindLayer && !r.Durable {
			fresh[key] = r.ID
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	dir, err := os.Open(s.dirs.root)
	if err != nil {
		return fmt.Errorf("sync layers: %w", err)
	}
	defer dir.Close()
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return fmt.Errorf("sync layers: %w", err)
	}
	for key, id := range fresh {
		if err := s.labels.writeDurable(key, id); err != nil {
			s.log.Warn("layer would be lost with the records", "key", key, "error", err)
		}
		if err := s.update(key, id, func(r *record) { r.Durable = true }); err != nil {
			return fmt.Errorf("sync layers: %w", err)
		}
	}
	return nil
}

// update changes the record of key if it is still the snapshot id.
func (s *snapshotter) update(key string, id uint64, change func(*record)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.table.Get(key)
	if err != nil || r.ID != id {
		return nil // removed meanwhile: nothing to update
	}
	change(&r)
	return s.table.Put(key, r)
}
