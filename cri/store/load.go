package store

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
)

// load reads both files and makes them one.
func (d *DB) load() error {
	own, err := d.loadMain()
	if err != nil && !errors.Is(err, errUnread) {
		return err
	}
	second, have := d.copy.load()
	if err != nil && !have {
		return err // to go on without would take everything that runs for nobody's
	}
	merged := content{latest: maps.Clone(own.latest), seq: max(own.seq, second.seq)}
	if merged.latest == nil {
		merged.latest = map[id]change{}
	}
	missing := 0
	for k, c := range second.latest {
		mine, ok := own.latest[k]
		if ok && (mine.seq >= c.seq || bytes.Equal(mine.value, c.value)) || !ok && c.value == nil {
			continue // a copy that was written again has what the file has, with later numbers
		}
		merged.latest[k] = c
		missing++
		if d.main != nil && d.trouble != nil {
			d.pending[k] = c
		}
	}
	d.seq = merged.seq
	for k, c := range merged.latest {
		if c.value != nil {
			d.raw[k] = c.value
		}
	}
	if missing > 0 {
		d.log.Warn("records are taken from their copy of this boot", "file", d.cfg.Path, "copy", d.cfg.Beside, "records", missing)
	}
	if d.trouble == nil && (d.rebuild || missing > 0 || d.main.end == 0 || d.main.end > rewriteSize) {
		if err := d.rewrite(); err != nil {
			d.inTrouble(err)
		}
	}
	d.renewCopy()
	return nil
}

// errUnread is of a file that is there and cannot be read, whatever it has.
var errUnread = errors.New("cannot be read")

// loadMain reads the file, and sets aside what is not one of ours.
func (d *DB) loadMain() (c content, err error) {
	path := d.cfg.Path
	f, readonly, err := openFile(path)
	switch {
	case errors.Is(err, ErrLocked):
		return c, err
	case errors.Is(err, os.ErrNotExist):
		d.inTrouble(readonly)
		return c, nil
	case err != nil:
		d.inTrouble(err)
		return c, fmt.Errorf("%w: %w", errUnread, err)
	}
	d.main = &journal{file: f}
	if readonly != nil {
		d.inTrouble(readonly)
	}
	b, err := readAll(f)
	if err == nil {
		// Half a line at the end is what a write has left that was cut off; the next one is written over it.
		d.main.end = int64(bytes.LastIndexByte(b, '\n') + 1)
		d.live = d.main.end
		c, d.rebuild, err = parseAny(b)
		if _, counts := parseLine(b[d.main.end:]); counts {
			// It lacks the line's end alone, and is not to be written over.
			d.rebuild = true
		}
	}
	switch {
	case errors.Is(err, errNewer):
		return c, err
	case err != nil && !errors.Is(err, errDamaged):
		d.inTrouble(err)
		return c, fmt.Errorf("%w: %w", errUnread, err)
	}
	if err == nil && c.bad > 0 {
		err = fmt.Errorf("%w: %d of its lines", errDamaged, c.bad)
	}
	if err != nil {
		d.setAside(err, len(c.latest))
	}
	return c, nil
}

// setAside keeps a copy of a file that is damaged; what counts of it is written again.
func (d *DB) setAside(why error, left int) {
	aside := d.cfg.Path + ".damaged"
	d.lost = fmt.Sprintf("some records were lost (%v); %d could be read; the file as it was is %s", why, left, aside)
	d.log.Error("records were lost", "file", d.cfg.Path, "aside", aside, "read", left, "error", why)
	err := os.Remove(aside)
	if err == nil || errors.Is(err, os.ErrNotExist) {
		err = os.Link(d.cfg.Path, aside)
	}
	if err != nil {
		d.log.Warn("damaged records are not kept", "error", err)
	}
	d.rebuild = true
}
