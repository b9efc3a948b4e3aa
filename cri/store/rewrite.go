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

// rewrite replaces main by a file with only what counts. It is on the disk before it has the name, so that a power cut leaves the one
// or the other; who writes meanwhile writes to both and waits for neither.
func (d *DB) rewrite() error {
	if err := makeHome(d.cfg.Path); err != nil {
		return err
	}
	unlock := d.freeze()
	next, err := create(d.cfg.Path, compose(d.all))
	d.next = next
	unlock()
	if err != nil {
		return err
	}
	size := next.end
	err = bare(next.file.Sync())
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil && d.next == nil {
		return errors.New("the new file cannot be written")
	}
	if err == nil {
		err = next.rename(d.cfg.Path)
	}
	if err != nil {
		d.dropNext()
		return err
	}
	old := d.main
	d.main, d.next, d.live, d.rebuild = next, nil, size, false
	clear(d.pending)
	d.mended()
	if old != nil {
		old.file.Close()
	}
	return syncDir(filepath.Dir(d.cfg.Path))
}

// dropNext gives up the file that was to replace main; the caller holds mu.
func (d *DB) dropNext() {
	if d.next != nil {
		d.next.file.Close()
		_ = os.Remove(d.cfg.Path + ".new")
		d.next = nil
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

// renewBeside writes the second file anew.
func (d *DB) renewBeside() {
	if d.cfg.Beside == "" {
		return
	}
	defer d.freeze()()
	if d.beside != nil {
		d.beside.file.Close()
		d.beside = nil
	}
	j, err := create(d.cfg.Beside, compose(func(yield func(change)) {
		yield(change{table: bootTable, key: d.boot, value: []byte("true")})
		d.all(yield)
	}))
	if err == nil {
		if err = j.rename(d.cfg.Beside); err != nil {
			err = errors.Join(err, j.file.Close())
		}
	}
	if err != nil {
		if d.besides == nil {
			d.log.Warn("the records have no copy", "file", d.cfg.Beside, "error", err)
		}
		d.besides = err
		return
	}
	d.beside, d.besides = j, nil
}
