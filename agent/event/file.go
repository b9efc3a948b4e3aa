package event

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// The file has an event a line, and an event that repeats once more for each time, so that it only ever grows at its
// end: what a kill leaves of the last line is no line, and is left out. It is written again from the ring when most of
// it is past.
const (
	fileLimit = 32 << 20 // of what is read; the ring and as many lines again are a tenth of that
	lineLimit = 16 << 10 // a message has 1 KiB at most
	fileMode  = 0o600
	maxSerial = 1 << 53 // more than a node ever has; what comes next must have one, too
)

// load takes in what the file has. It is called before anybody else has the ring.
func (r *Ring) load() {
	if r.cfg.File == "" {
		return
	}
	f, err := os.OpenFile(r.cfg.File, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var entries []entry
	if err == nil {
		entries, err = read(io.LimitReader(f, fileLimit))
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		r.cfg.Log.Warn("events of before the restart cannot be read", "file", r.cfg.File, "error", err)
	}
	for i := range entries {
		r.kept.add(entries[i])
		r.serial = max(r.serial, entries[i].Serial, entries[i].Born)
	}
}

// read returns the latest state of each event, in the order in which they came first.
func read(from io.Reader) ([]entry, error) {
	latest := map[int64]entry{}
	lines := bufio.NewReaderSize(from, lineLimit)
	var err error
	for err == nil {
		var line []byte
		var e entry
		line, err = nextLine(lines)
		if json.Unmarshal(line, &e) != nil || e.Born <= 0 || e.Serial < e.Born || e.Serial > maxSerial || e.Count <= 0 {
			continue
		}
		e.Message, e.Annotations = shorten(e.Message), bounded(e.Annotations)
		latest[e.Born] = e
	}
	out := make([]entry, 0, len(latest))
	for _, e := range latest {
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b entry) int { return cmp.Compare(a.Born, b.Born) })
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return out, err
}

// nextLine reads a line; one that is longer than any of ours is damaged, and is nothing.
func nextLine(lines *bufio.Reader) ([]byte, error) {
	line, err := lines.ReadSlice('\n')
	for errors.Is(err, bufio.ErrBufferFull) {
		line = nil
		_, err = lines.ReadSlice('\n')
	}
	return line, err
}

// Run keeps the events in the file until ctx ends. It writes what has come since it last wrote, all at once.
func (r *Ring) Run(ctx context.Context) {
	if r.cfg.File == "" {
		return
	}
	k := keep{path: r.cfg.File, limit: 2 * r.cfg.Capacity}
	defer k.close()
	var kept int64
	for failed, ends := false, false; ; {
		entries, serial, change := r.since(kept)
		if k.file == nil || k.lines+len(entries) > k.limit {
			entries, serial, change = r.since(0)
			k.close()
		}
		err := k.write(entries)
		if err == nil {
			kept = serial
		} else if !failed { // once for as long as it fails: the disk may be full, which is told elsewhere, too
			r.cfg.Log.Warn("events are not kept over a restart", "file", r.cfg.File, "error", err)
		}
		failed = err != nil
		if ends {
			return
		}
		select {
		case <-ctx.Done():
			ends = true // with what has come last
		case <-change:
		}
	}
}

// keep is the file while it is written.
type keep struct {
	path  string
	limit int // of lines
	file  *os.File
	lines int
}

func (k *keep) close() {
	if k.file != nil {
		_ = k.file.Close() // nothing is buffered
	}
	k.file, k.lines = nil, 0
}

// write adds the entries to the file, or makes a new one of them when none is open.
func (k *keep) write(entries []entry) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	for i := range entries {
		if err := enc.Encode(&entries[i]); err != nil {
			return err
		}
	}
	if k.file != nil {
		k.lines += len(entries)
		_, err := k.file.Write(text.Bytes())
		if err != nil {
			k.close() // part of a line may be there
		}
		return err
	}
	f, err := os.OpenFile(k.path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, fileMode)
	if err != nil {
		return err
	}
	if _, err = f.Write(text.Bytes()); err == nil {
		err = os.Rename(k.path+".new", k.path)
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	k.file, k.lines = f, len(entries)
	return nil
}
