package store

import (
	"errors"
	"log/slog"
	"os"
)

// bootTable has the boot that the copy is of.
const bootTable = ".boot"

// bootCopy is the second file, which has all records of this boot or is not there. It is never synced: it ends with the
// boot. Where it cannot be written, the records go on without it.
type bootCopy struct {
	path string // "" = there is to be none
	boot string
	log  *slog.Logger

	file *journal // nil: it is not written
	live int64    // size of file when it was written again
	err  error    // why it is not, or not complete
}

// load reads the copy. It has all of this boot, or is not there.
func (b *bootCopy) load() (c content, have bool) {
	if b.path == "" {
		return c, false
	}
	f, err := os.Open(b.path)
	if err != nil {
		return c, false
	}
	defer f.Close()
	all, err := readAll(f)
	if err == nil {
		c, err = parse(all)
	}
	if _, ok := c.latest[id{bootTable, b.boot}]; err != nil || !ok {
		return content{}, false
	}
	delete(c.latest, id{bootTable, b.boot})
	return c, true
}

// append adds a line.
func (b *bootCopy) append(line []byte) {
	if b.file == nil {
		return
	}
	if err := b.file.append(line, true); err != nil && b.err == nil {
		b.err = err
		b.log.Warn("the copy of the records is not complete", "file", b.path, "error", err)
	}
}

// stale says that it is to be written again: it is not complete, or long for what counts of it. All records wait for
// that, and those of a thousand pods are longer than the size alone.
func (b *bootCopy) stale() bool {
	return b.file != nil && (b.err != nil || b.file.end > rewriteSize && b.file.end > 2*b.live)
}

// renew writes it again, with every record.
func (b *bootCopy) renew(all func(yield func(change))) {
	if b.file != nil {
		b.file.file.Close()
		b.file = nil
	}
	j, err := create(b.path, compose(func(yield func(change)) {
		yield(change{table: bootTable, key: b.boot, value: []byte("true")})
		all(yield)
	}))
	if err == nil {
		if err = j.rename(b.path); err != nil {
			err = errors.Join(err, j.file.Close())
		}
	}
	if err != nil {
		if b.err == nil {
			b.log.Warn("the records have no copy", "file", b.path, "error", err)
		}
		b.err = err
		return
	}
	b.file, b.live, b.err = j, j.end, nil
}
