package store

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// all yields every record. The caller holds the locks of all tables, and mu.
func (d *DB) all(yield func(change)) {
	for k, v := range d.raw {
		yield(change{seq: d.seq, table: k.table, key: k.key, value: v})
	}
	for name, t := range d.tables {
		t.dump(func(key string, value []byte) { yield(change{seq: d.seq, table: name, key: key, value: value}) })
	}
}

// freeze takes all locks.
func (d *DB) freeze() (unlock func()) {
	d.mu.Lock()
	names := slices.Sorted(maps.Keys(d.tables))
	tables := make([]dumper, 0, len(names))
	for _, n := range names {
		tables = append(tables, d.tables[n])
	}
	d.mu.Unlock()
	var undo []func()
	for _, t := range tables {
		undo = append(undo, t.lock())
	}
	d.mu.Lock()
	return func() {
		d.mu.Unlock()
		for _, u := range undo {
			u()
		}
	}
}

// rewrite replaces main by a file with only what counts. It is on the disk before it has the name, so that a power cut
// leaves the one or the other; who writes meanwhile writes to both and waits for neither.
func (d *DB) rewrite() error {
	if err := makeHome(d.cfg.Path); err != nil {
		return err
	}
	unlock := d.freeze()
	next, size, err := d.compaction.begin(compose(d.all))
	unlock()
	if err != nil {
		return err
	}
	err = bare(next.file.Sync())
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil {
		err = d.compaction.finish()
	}
	if err != nil {
		d.compaction.drop()
		return err
	}
	old := d.main
	d.main, d.live, d.rebuild = next, size, false
	clear(d.pending)
	d.mended()
	if old != nil {
		old.file.Close()
	}
	return syncDir(filepath.Dir(d.cfg.Path))
}

// compaction is the file that is to replace main: what counts, and what is written until it has the name.
type compaction struct {
	path string   // of main
	next *journal // nil: there is none
}

// begin writes a new file beside main, and says how long it is.
func (c *compaction) begin(b []byte) (*journal, int64, error) {
	next, err := create(c.path, b)
	if err != nil {
		return nil, 0, err
	}
	c.next = next
	return next, next.end, nil
}

// append adds a line; where that fails, the file is given up.
func (c *compaction) append(line []byte) {
	if c.next == nil {
		return
	}
	if err := c.next.append(line, true); err != nil {
		c.drop()
	}
}

// finish gives the file the name of main.
func (c *compaction) finish() error {
	if c.next == nil {
		return errors.New("the new file cannot be written")
	}
	if err := c.next.rename(c.path); err != nil {
		return err
	}
	c.next = nil
	return nil
}

// drop gives the file up.
func (c *compaction) drop() {
	if c.next != nil {
		c.next.file.Close()
		_ = os.Remove(c.path + ".new")
		c.next = nil
	}
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return bare(err)
	}
	defer f.Close()
	return bare(f.Sync())
}

// renewCopy writes the copy again.
func (d *DB) renewCopy() {
	if d.copy.path == "" {
		return
	}
	defer d.freeze()()
	d.copy.renew(d.all)
}
