package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-node/berth/csi"
	"github.com/berth-node/berth/internal/patience"
)

// Manager has the volumes of all drivers on this node. It is safe for concurrent use: what is done with one volume is
// done one after another, with different ones at once.
type Manager struct {
	cfg     Config
	ledger  *ledger
	drivers *csi.Drivers
	log     *slog.Logger
	calls   patience.Calls // of the kernel, that may never return
	unheard func()
	step    func(name string) // what tests end the process in
}

// ledger has the volumes, and the files that they are written to before anybody goes by them.
type ledger struct {
	layout  layout
	journal journal
	boot    string
	log     *slog.Logger
	now     func() time.Time

	mu      sync.Mutex
	entries map[string]*entry // by key
	later   map[string]string // records of a later version, which stay: why, by key
	damaged map[string]string // records that were put aside: why, by path
}

// entry is a volume. Its record and its note are those of who holds the lock; who only looks reads them with ledger.mu.
type entry struct {
	key   string
	name  string // of the driver; guarded by ledger.mu
	lock  chan struct{}
	stats chan struct{}
	users int // who holds the lock or waits for it; guarded by ledger.mu

	// Written with both the lock and ledger.mu.
	record *record // nil: there is none
	note   *note

	// Guarded by ledger.mu.
	publish, release, expand retry

	abandoned bool // the next pod that goes does not wait for the driver; guarded by ledger.mu
}

// New reads the records and returns a Manager. Records that cannot be read are put aside, and are [Manager.Problems].
// It fails for what is not a record's own.
func New(cfg Config) (*Manager, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Drivers == nil {
		return nil, errors.New("no drivers are given")
	}
	// The kernel's list of mounts has no links in its paths, so ours have none either.
	root, err := filepath.Abs(cfg.Root)
	if err == nil {
		var real string
		if real, err = filepath.EvalSymlinks(root); err == nil {
			root = real
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // it may be made later
		return nil, fmt.Errorf("look for the root directory: %w", err)
	}
	if cfg.Records == "" {
		cfg.Records = filepath.Join(root, "csi")
	}
	if cfg.Boot == "" {
		id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
		if err != nil {
			return nil, fmt.Errorf("read boot ID: %w", err)
		}
		cfg.Boot = strings.TrimSpace(string(id))
	}
	files, err := openJournal(cfg.Records, cfg.Boot)
	if err != nil { // the disk may be read-only: what runs goes on, and nothing new is recorded until this works
		cfg.Log.Warn("records of volumes may be older than their journal", "dir", cfg.Records, "error", err)
	}
	m := &Manager{
		cfg: cfg, drivers: cfg.Drivers, log: cfg.Log, step: func(string) {},
		ledger: &ledger{
			layout: layout{root}, journal: files, boot: cfg.Boot, log: cfg.Log, now: time.Now,
			entries: map[string]*entry{}, later: map[string]string{}, damaged: map[string]string{},
		},
	}
	if err := m.ledger.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("read records of volumes: %w", err), files.records.Close())
	}
	m.unheard = cfg.Drivers.Subscribe(m.heard)
	return m, nil
}

// Close unsubscribes the Manager. Volumes stay as they are.
func (m *Manager) Close() { m.unheard() }

// heard has what waits for a driver be tried at once when it comes.
func (m *Manager) heard(e csi.Event) {
	if !e.Here {
		return
	}
	m.ledger.mu.Lock()
	defer m.ledger.mu.Unlock()
	for _, v := range m.ledger.entries {
		if v.name == e.Driver {
			v.publish.soon()
			v.release.soon()
			v.expand.soon()
		}
	}
}

// lock returns the entry of a volume when nobody else does anything with it, and what gives it back.
func (m *ledger) lock(ctx context.Context, key, driver string) (*entry, func(), error) {
	m.mu.Lock()
	v := m.entries[key]
	if v == nil {
		v = m.newEntry(key, driver)
		m.entries[key] = v
	}
	v.users++
	if driver != "" {
		v.name = driver
	}
	m.mu.Unlock()
	select {
	case v.lock <- struct{}{}:
		return v, func() { <-v.lock; m.leave(v) }, nil
	case <-ctx.Done():
		m.leave(v)
		return nil, nil, fmt.Errorf("wait for what else is done with the volume: %w", ctx.Err())
	}
}

func (m *ledger) newEntry(key, driver string) *entry {
	return &entry{
		key: key, name: driver, lock: make(chan struct{}, 1), stats: make(chan struct{}, 1), note: &note{Boot: m.boot},
	}
}

// leave lets go an entry that says nothing any more: a volume that failed is remembered until its time is over, so that
// it is not tried at once again.
func (m *ledger) leave(v *entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v.users--
	for key, v := range m.entries {
		if v.users == 0 && v.record == nil && m.now().After(v.publish.until.Add(retryMax)) {
			delete(m.entries, key)
		}
	}
}

// keep makes r the record of a volume, on the disk first.
func (m *ledger) keep(v *entry, r *record) error {
	if err := m.journal.keep(v.key, r); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	v.record = r
	return nil
}

// mark makes n the note of a volume, on the disk first.
func (m *ledger) mark(v *entry, change func(*note)) error {
	n := v.note.clone()
	change(n)
	if err := m.journal.mark(v.key, n); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	v.note = n
	return nil
}

// know is mark without the disk.
func (m *ledger) know(v *entry, change func(*note)) {
	n := v.note.clone()
	change(n)
	m.mu.Lock()
	defer m.mu.Unlock()
	v.note = n
}

func (m *ledger) forget(v *entry) error {
	if err := m.journal.forget(v.key); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	v.record, v.note = nil, &note{Boot: m.boot}
	return nil
}

// load reads all records.
func (m *ledger) load() error {
	files, err := os.ReadDir(m.journal.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // it is made with the first record
		return err
	}
	mounts, err := mountPoints()
	if err != nil {
		return err
	}
	for _, f := range files {
		path := filepath.Join(m.journal.dir, f.Name())
		switch key, suffix := f.Name(), filepath.Ext(f.Name()); suffix {
		case recordSuffix:
			m.loadOne(strings.TrimSuffix(key, suffix), path, mounts)
		case badSuffix:
			m.damaged[path] = "it could not be read at an earlier start"
		case atomicfilePart: // of a writer that was killed
			_ = os.Remove(path)
		}
	}
	for _, f := range files {
		if key, ok := strings.CutSuffix(f.Name(), noteSuffix); ok && m.entries[key] == nil && m.later[key] == "" {
			_ = os.Remove(m.journal.path(key, noteSuffix))
		}
	}
	return m.rebuild()
}

const atomicfilePart = ".new"

func (m *ledger) loadOne(name, path string, mounts map[string]bool) {
	data, err := readBounded(path)
	var r *record
	if err == nil {
		r, err = decode(data, m.layout)
	}
	if err == nil && key(r.Driver, r.Handle) != name {
		err = errors.New("it is of another volume than its name says")
	}
	switch {
	case errors.Is(err, errLater), errors.As(err, new(*fs.PathError)): // it may be read another day
		m.later[name] = fmt.Sprintf("%s: %v", path, err)
	case err != nil:
		m.putAside(path, err)
	default:
		v := m.newEntry(name, r.Driver)
		v.record, v.note = r, m.journal.readNote(name, m.boot)
		v.note.Published = known(v.note.Published, r, mounts)
		if v.note.Staged != nil && v.note.Staged.Mount && !mounts[r.Stage] {
			v.note.Staged = nil
		}
		m.entries[name] = v
	}
}

// known is what of a note is so by the kernel: what somebody has unmounted is to be done once more.
func known(published map[string]done, r *record, mounts map[string]bool) map[string]done {
	out := map[string]done{}
	for path, d := range published {
		if r.use(path) >= 0 && (!d.Mount || mounts[path]) {
			out[path] = d
		}
	}
	return out
}

func (m *ledger) putAside(path string, why error) {
	m.log.Error("record of a volume cannot be read; it is put aside", "path", path, "error", why)
	bad := strings.TrimSuffix(path, recordSuffix) + badSuffix
	if err := os.Rename(path, bad); err != nil {
		bad, why = path, fmt.Errorf("%w; it stays: %w", why, err)
	}
	m.damaged[bad] = why.Error()
}

// Problems are records that cannot be read, and what hangs.
func (m *Manager) Problems() []string {
	m.ledger.mu.Lock()
	var out []string
	for path, why := range m.ledger.damaged {
		out = append(out, fmt.Sprintf("record %s of a volume is damaged: %s", path, why))
	}
	for _, why := range m.ledger.later {
		out = append(out, "record of a volume: "+why)
	}
	m.ledger.mu.Unlock()
	for name, began := range m.calls.Stuck() {
		out = append(out, fmt.Sprintf("%s: hangs since %s", name, began.Format(time.RFC3339)))
	}
	slices.Sort(out)
	return out
}

// How soon a volume is tried again that has failed, by kubelet's rule.
const (
	retryInitial = 500 * time.Millisecond
	retryMax     = 2*time.Minute + 2*time.Second
)

// unreadable says why nothing can be done with a volume whose record is of a later version.
func (m *ledger) unreadable(key string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.later[key]
}

// retry is when something may be tried again.
type retry struct {
	delay time.Duration
	until time.Time
	last  error
}

func (r *retry) failed(now time.Time, err error) {
	r.delay = min(max(2*r.delay, retryInitial), retryMax)
	r.until, r.last = now.Add(r.delay), err
}

// soon has the next try be at once, and the one after it soon.
func (r *retry) soon() { r.delay, r.until = 0, time.Time{} }

func (m *ledger) soon(r *retry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r.soon()
}

// Backoff is the error of a volume that failed a short time ago, and is not tried again before Until, unless its driver
// is registered again.
type Backoff struct {
	Until time.Time
	Last  error
}

func (b *Backoff) Error() string { return b.Last.Error() }

// Unwrap is what went wrong.
func (b *Backoff) Unwrap() error { return b.Last }

// mayTry is a [*Backoff] when it is too soon.
func (m *ledger) mayTry(r *retry) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.last != nil && m.now().Before(r.until) {
		return &Backoff{r.until, r.last}
	}
	return nil
}

// tried keeps what came of a try. Neither a caller that gave up nor a driver that is not there makes the next one wait.
func (m *ledger) tried(ctx context.Context, r *retry, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err == nil:
		*r = retry{}
	case ctx.Err() != nil || errors.Is(err, csi.ErrNotRegistered):
		r.last = err
	default:
		r.failed(m.now(), err)
	}
}
