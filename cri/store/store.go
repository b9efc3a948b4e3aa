// Package store keeps the runtime's records: typed tables in one file of lines, each with a copy in memory.
//
// A record is written before the act it describes. Writes reach the page cache at once, so a kill -9 of the process
// loses nothing; they reach the disk shortly after, because an fsync on the path of a pod's start would cost more than
// the start. A power cut can therefore tear the file. What is torn is passed over, and the rest counts: after a boot
// nothing it described runs any more, and layers without a record are unpacked again.
//
// The records are few and small, and read only at start, so that a file to which changes are added is all they need. It
// is read by plain reads: what is mapped into memory ends the process where a disk fails or the file is cut, and no
// content may do that.
//
// A second file, on a file system that ends with the boot, can have the same: it is there where the first is lost or
// cannot be written.
package store

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/disk"
)

// syncDelay is how long a write may stay in the page cache only. It is as long as a journal's own interval: while a
// journal is written, whoever makes a file or a directory on its file system may have to wait for it, and pods that
// start do little else.
const syncDelay = 5 * time.Second

// rewriteSize is how large a file may be before what counts of it is written again.
const rewriteSize = 4 << 20

var (
	// ErrLocked says that another process has the file open.
	ErrLocked = errors.New("in use by another process")
	// ErrReadOnly says that records cannot be written now; the cause is with it.
	ErrReadOnly = errors.New("records cannot be written")

	errDamaged = errors.New("damaged")
	errClosed  = errors.New("records are closed")
)

// Config says where records are. Path is required.
type Config struct {
	Path   string
	Beside string // a second file, that means something during this boot only; "" = none
	Log    *slog.Logger
}

// DB is the open records. It is safe for concurrent use.
type DB struct {
	cfg Config
	log *slog.Logger

	mu      sync.Mutex // taken after any table's
	seq     uint64
	tables  map[string]dumper
	raw     map[id][]byte // records of tables that nobody has opened, and those that cannot be read
	main    *journal      // nil: there is no file, and it cannot be made
	live    int64         // size of main when it was written again
	rebuild bool          // main is damaged: it is to be replaced, and nothing added to it
	pending map[id]change // what main lacks
	trouble error         // why main cannot be written
	mending chan struct{} // closed at the end of the trouble; nil: there is none
	lost    string
	closed  bool

	// mu is for these, too.
	compaction compaction
	copy       bootCopy

	tender tender
}

// tender is who syncs and mends the files.
type tender struct {
	dirty chan struct{}
	done  chan struct{}
	wait  sync.WaitGroup
}

// dumper is a table as the file sees it.
type dumper interface {
	lock() (unlock func())
	dump(yield func(key string, value []byte))
}

// Open opens or creates the files. It fails with [ErrLocked] when another process has them. What cannot be read of
// their content is left out, told, and kept as path + ".damaged". Where the file is there and cannot be read for
// another reason than its content, the second one must have all of it, or opening fails. Where it cannot be written it
// opens nevertheless: see [DB.Trouble].
func Open(c Config) (*DB, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	d := &DB{
		cfg: c, log: c.Log, compaction: compaction{path: c.Path}, copy: bootCopy{path: c.Beside, log: c.Log},
		tables: map[string]dumper{}, raw: map[id][]byte{}, pending: map[id]change{},
		tender: tender{dirty: make(chan struct{}, 1), done: make(chan struct{})},
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("read boot ID: %w", err)
	}
	d.copy.boot = strings.TrimSpace(string(boot))
	if err := d.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", c.Path, err), d.closeFiles())
	}
	d.tender.wait.Add(1)
	go d.syncLoop()
	return d, nil
}

// Trouble is why records cannot be written at the moment; nil when they can. Until then deletions and what has happened
// are remembered, and new records are refused.
func (d *DB) Trouble() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.trouble
}

// Mended is closed when the trouble of now is over; nil when there is none.
func (d *DB) Mended() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mending
}

// Lost says what was lost when the records were opened; "" when nothing was.
func (d *DB) Lost() string { return d.lost }

// inTrouble notes why main cannot be written; the caller holds mu.
func (d *DB) inTrouble(err error) {
	if d.trouble == nil {
		d.log.Error("records cannot be written: what runs goes on, and nothing new is begun", "file", d.cfg.Path, "error", err)
		d.mending = make(chan struct{})
	}
	d.trouble = err
	d.touched()
}

// write adds one change. Where it cannot, it fails if it must be on the disk, and is remembered otherwise.
func (d *DB) write(table, key string, value []byte, must bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return errClosed
	}
	d.seq++
	c := change{seq: d.seq, table: table, key: key, value: value}
	line := c.line()
	err := d.add(line, must)
	if err != nil && must {
		return fmt.Errorf("%w: %w", ErrReadOnly, err)
	}
	if err != nil {
		d.pending[id{table, key}] = c
	} else {
		delete(d.pending, id{table, key})
	}
	d.compaction.append(line)
	d.copy.append(line)
	d.touched()
	return nil
}

// add adds a line to main, which what must be there must leave some room in; the caller holds mu.
func (d *DB) add(line []byte, must bool) error {
	if d.trouble != nil {
		if err := d.flush(!must); err != nil {
			return err
		}
	}
	err := d.main.append(line, !must)
	if err != nil {
		d.inTrouble(err)
	} else if must {
		d.mended()
	}
	return err
}

// mended notes that main can be written; the caller holds mu.
func (d *DB) mended() {
	if d.trouble != nil {
		d.log.Info("records are written again", "file", d.cfg.Path)
		close(d.mending)
	}
	d.trouble, d.mending = nil, nil
}

// flush writes what main lacks; the caller holds mu. A file that has to be replaced is left to syncLoop.
func (d *DB) flush(scarce bool) error {
	if d.main == nil || d.rebuild {
		return d.trouble
	}
	if flags, err := unix.FcntlInt(d.main.file.Fd(), unix.F_GETFL, 0); err != nil || flags&unix.O_ACCMODE == unix.O_RDONLY {
		return d.trouble
	}
	var lines []byte
	for _, c := range d.pending {
		lines = append(lines, c.line()...)
	}
	if err := d.main.append(lines, scarce); err != nil {
		return err
	}
	clear(d.pending)
	return nil
}

// Sync makes every write so far durable.
func (d *DB) Sync() error {
	d.mu.Lock()
	j, err := d.main, d.trouble
	d.mu.Unlock()
	if err == nil {
		err = bare(j.file.Sync())
	}
	if err == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if j != d.main {
		return nil // what replaced it meanwhile is on the disk
	}
	if d.trouble == nil && !d.closed {
		// The kernel takes the pages for written now, so that only a new file can be trusted.
		d.rebuild = true
		d.inTrouble(err)
	}
	return fmt.Errorf("sync records: %w", err)
}

// Close syncs and closes the files.
func (d *DB) Close() error {
	close(d.tender.done)
	d.tender.wait.Wait()
	var err error
	if d.Trouble() == nil {
		err = d.Sync()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	return errors.Join(err, d.closeFiles())
}

func (d *DB) closeFiles() error {
	var errs []error
	for _, j := range []*journal{d.main, d.compaction.next, d.copy.file} {
		if j != nil {
			errs = append(errs, j.file.Close())
		}
	}
	return errors.Join(errs...)
}

func (d *DB) touched() {
	select {
	case d.tender.dirty <- struct{}{}:
	default:
	}
}

func (d *DB) syncLoop() {
	defer d.tender.wait.Done()
	for {
		select {
		case <-d.tender.done:
			return
		case <-d.tender.dirty:
		}
		select {
		case <-d.tender.done:
			return
		case <-time.After(syncDelay):
		}
		d.tend()
	}
}

// tend syncs, mends what can be mended, and keeps the files short.
func (d *DB) tend() {
	err := d.Trouble()
	if err == nil {
		err = d.Sync()
	}
	d.mu.Lock()
	switch {
	case err == nil && d.main.reserved-d.main.end < lowReserve:
		// So that it is known before somebody wants to begin something.
		if err := d.main.hold(0); disk.Unwritable(err) {
			d.inTrouble(err)
		}
	case err != nil:
		if err = d.flush(false); err == nil {
			d.mended()
		}
	}
	long := err == nil && d.main.end > rewriteSize && d.main.end > 4*d.live
	stale := d.copy.stale()
	d.mu.Unlock()
	if err != nil || long {
		if err := d.rewrite(); err != nil {
			d.mu.Lock()
			if d.trouble != nil {
				d.trouble = err
			}
			d.mu.Unlock()
		}
	}
	if stale {
		d.renewCopy()
	}
	if d.Trouble() != nil {
		d.touched()
	}
}
