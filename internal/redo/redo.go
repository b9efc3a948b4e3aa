// Package redo keeps small files that outlive a loss of power for the price of one sync of one file whose place on the
// disk is fixed: a file is written as it always is, but not synced, and what it has is appended to the journal, which
// is. As long as the machine runs the files are what counts, and nobody reads the journal. After it was started again
// they are made what the journal says.
package redo

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/atomicfile"
)

const (
	// fileName is the journal's own, in the directory of the files.
	fileName      = "journal"
	damagedSuffix = ".damaged"
	// size is that of the journal, in bytes. All of it is on the disk from the beginning: a sync then writes nothing
	// about the file.
	size = 1 << 20
	// maxEntry is what an entry may have, in bytes. What has more is synced as a file.
	maxEntry = 32 << 10
	head     = 8 // the length and the checksum of an entry, in bytes
)

// syncs is how far the disk has the journal. One sync is for all who have written before it: a node that starts a
// hundred pods waits for a few, not for a hundred one after the other.
type syncs struct {
	mu     sync.Mutex // held by who syncs; taken before that of the Log
	done   int64      // of the entries that were ever written
	failed int64      // so many of them the disk may not have: the kernel tells of an error once
	err    error
}

// entry is what has become of a file.
type entry struct {
	// Era is of all entries since the journal was begun anew: what lies behind the last of them is of another one.
	Era  string `json:"era"`
	Boot string `json:"boot"` // of the machine that has written it
	Name string `json:"name"`
	Data []byte `json:"data,omitempty"`
	Gone bool   `json:"gone,omitempty"` // it was removed
	File bool   `json:"file,omitempty"` // it was synced itself
}

// Log writes the files of a directory, which nobody else does. It is safe for concurrent use, but for one name at a
// time.
type Log struct {
	dir, boot string
	full      int64 // where no entry may end behind; that of the file, but for tests
	step      func(name string)

	syncs syncs

	mu    sync.Mutex
	file  *os.File        // nil: nothing was ever written
	era   string          // "": the next entry begins one
	end   int64           // of the entries of the era
	count int64           // of the entries that were ever written
	names map[string]bool // of files in entries of the era, which the disk need not have yet

	behind bool // the journal was not read, or files are not what it says
	closed bool
}

// Open opens the journal of a directory that need not be there, and has the files be what it says when the machine was
// started since, whose boot ID boot is. What it cannot read of the journal is as if it had not been written: that is
// what a loss of power leaves of the last entry. An error says that some files may be older than the journal is, as on
// a disk that is read-only; there is a Log then, too, whose next act tries that again before it does anything.
func Open(dir, boot string) (*Log, error) {
	l := &Log{dir: dir, boot: boot, full: size, step: func(string) {}, names: map[string]bool{}}
	l.behind = true
	return l, l.catchUp()
}

// catchUp reads the journal, unless that was done, and has the files be what it says. The lock is held, or nobody else
// has the Log yet.
func (l *Log) catchUp() error {
	if !l.behind {
		return nil
	}
	if st, err := os.Lstat(l.path()); err == nil && !st.Mode().IsRegular() {
		// Somebody else's, which has no entries, and would be in the way of those that come.
		if err := os.Rename(l.path(), l.path()+damagedSuffix); err != nil {
			return fmt.Errorf("put aside what is no journal: %w", err)
		}
	}
	f, err := os.OpenFile(l.path(), os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		l.behind = false
		return nil
	}
	if err != nil {
		return fmt.Errorf("open journal: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(f, size))
	if err != nil {
		return errors.Join(fmt.Errorf("read journal %s: %w", l.path(), err), f.Close())
	}
	l.file = f
	if err := l.replay(read(data)); err != nil {
		l.file = nil
		return errors.Join(fmt.Errorf("make files what the journal says: %w", err), f.Close())
	}
	l.behind = false
	return nil
}

// Close closes the journal; its files stay what they are, and nothing is written any more.
func (l *Log) Close() error {
	l.syncs.mu.Lock()
	defer l.syncs.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.file == nil {
		l.closed = true
		return nil
	}
	l.closed = true
	return l.file.Close()
}

// Hear has step be told before each step: tests end there.
func (l *Log) Hear(step func(name string)) { l.step = step }

func (l *Log) path() string { return filepath.Join(l.dir, fileName) }

// read are the entries of the era that the first one is of.
func read(data []byte) (out []entry) {
	for {
		e, n, ok := decode(data)
		if !ok || len(out) > 0 && e.Era != out[0].Era {
			return out
		}
		out, data = append(out, e), data[n:]
	}
}

var table = crc32.MakeTable(crc32.Castagnoli)

func encode(e entry) ([]byte, error) {
	body, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	out := make([]byte, head, head+len(body))
	binary.LittleEndian.PutUint32(out, uint32(len(body)))
	binary.LittleEndian.PutUint32(out[4:], crc32.Checksum(body, table))
	return append(out, body...), nil
}

// decode is the entry that data begins with, and how many bytes it has; false: none that is whole.
func decode(data []byte) (e entry, n int, ok bool) {
	if len(data) < head {
		return e, 0, false
	}
	long := binary.LittleEndian.Uint32(data)
	if long == 0 || long > maxEntry || int(long) > len(data)-head {
		return e, 0, false
	}
	n = head + int(long)
	body := data[head:n]
	if crc32.Checksum(body, table) != binary.LittleEndian.Uint32(data[4:]) || json.Unmarshal(body, &e) != nil {
		return e, 0, false
	}
	return e, n, e.Era != "" && isName(e.Name)
}

// isName says whether a name leads nowhere but into its own directory, and not to the journal.
func isName(s string) bool {
	return s != "" && s != "." && s != ".." && s != fileName && len(s) <= unix.NAME_MAX && !strings.ContainsAny(s, "/\x00")
}

// replay makes the files what the last entry of each says, if the machine was started since, and begins a new era.
func (l *Log) replay(entries []entry) error {
	last := map[string]entry{}
	for _, e := range entries {
		last[e.Name] = e
	}
	for name, e := range last {
		l.names[name] = true
		if e.Boot == l.boot || e.File {
			continue
		}
		l.step("replay " + name)
		path := filepath.Join(l.dir, name)
		var err error
		if e.Gone {
			err = removed(os.Remove(path))
		} else {
			err = atomicfile.Write(path, e.Data, 0o600)
		}
		if err != nil {
			return err
		}
	}
	return l.settle()
}

func removed(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// settle has the disk have all files that entries are about, so that nothing needs these any more, and begins the
// journal anew.
func (l *Log) settle() error {
	for name := range l.names { // begun for all of them, most of the waiting is for the first
		if f, err := os.OpenFile(filepath.Join(l.dir, name), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0); err == nil {
			_ = unix.SyncFileRange(int(f.Fd()), 0, 0, unix.SYNC_FILE_RANGE_WRITE)
			_ = f.Close()
		}
	}
	for name := range l.names {
		l.step("settle " + name)
		f, err := os.OpenFile(filepath.Join(l.dir, name), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = errors.Join(f.Sync(), f.Close())
		}
		if err != nil {
			return fmt.Errorf("sync file: %w", err)
		}
	}
	l.step("settle directory")
	if err := atomicfile.SyncDir(l.dir); err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	l.era, l.end, l.names = "", 0, map[string]bool{}
	// Without an entry at its beginning there is none. It may as well stay until another is written over it: it says
	// what is so.
	if _, err := l.file.WriteAt(make([]byte, head), 0); err != nil {
		return fmt.Errorf("begin journal anew: %w", err)
	}
	return nil
}

// Write makes data the content of the file of a name in the directory, which is made when it is first needed. It
// outlives a loss of power when Write returns.
func (l *Log) Write(name string, data []byte) error {
	if !isName(name) {
		return fmt.Errorf("write file: %q is no name", name)
	}
	if err := l.prepare(); err != nil {
		return err
	}
	l.step("write file")
	e := entry{Name: name, Data: data}
	write := atomicfile.Write
	if 2*len(data) > maxEntry { // which is longer as JSON
		e, write = entry{Name: name, File: true}, atomicfile.WriteSynced
	}
	if err := write(filepath.Join(l.dir, name), data, 0o600); err != nil {
		return err
	}
	n, err := l.append(e)
	if err != nil {
		return err
	}
	return l.sync(n)
}

// Remove removes a file; it is no error when there is none. After a loss of power that follows soon it may be there
// again.
func (l *Log) Remove(name string) error {
	l.mu.Lock()
	err := l.catchUp()
	none := l.file == nil
	l.mu.Unlock()
	if err != nil {
		return err
	}
	l.step("remove file")
	if err := removed(os.Remove(filepath.Join(l.dir, name))); err != nil || none {
		return err
	}
	_, err = l.append(entry{Name: name, Gone: true})
	return err
}

// prepare has there be a journal that takes all the place it will ever have.
func (l *Log) prepare() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return fmt.Errorf("write file: %w", fs.ErrClosed)
	}
	if err := l.catchUp(); err != nil || l.file != nil {
		return err
	}
	l.step("make journal")
	// A journal that is not whole is one without entries, and made again.
	err := atomicfile.WriteSyncedIn(l.path(), make([]byte, size), 0o600)
	if err == nil {
		l.file, err = os.OpenFile(l.path(), os.O_RDWR|unix.O_NOFOLLOW, 0)
	}
	if err != nil {
		return fmt.Errorf("make journal: %w", err)
	}
	return nil
}

// append adds an entry behind the others, and returns how many there are by then. Before there is no room for more the
// journal is begun anew, by who removes something if possible: others wait to start a pod.
func (l *Log) append(e entry) (n int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return 0, fmt.Errorf("write journal: %w", fs.ErrClosed)
	}
	if l.end > l.full-maxEntry-head || e.Gone && l.end > l.full/2 {
		l.names[e.Name] = true
		if err := l.settle(); err != nil {
			return 0, err
		}
	}
	era := l.era
	if era == "" {
		era = rand.Text()
	}
	e.Era, e.Boot = era, l.boot
	data, err := encode(e)
	if err != nil {
		return 0, fmt.Errorf("write journal: %w", err)
	}
	l.step("append")
	if _, err := l.file.WriteAt(data, l.end); err != nil {
		return 0, fmt.Errorf("write journal: %w", err)
	}
	l.era = era
	l.end += int64(len(data))
	l.count++
	l.names[e.Name] = true
	return l.count, nil
}

// sync has the disk have the first n entries.
func (l *Log) sync(n int64) error {
	s := &l.syncs
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case n <= s.failed:
		return s.err
	case n <= s.done:
		l.step("appended")
		return nil
	}
	l.mu.Lock()
	file, all, closed := l.file, l.count, l.closed
	l.mu.Unlock()
	if closed {
		return fmt.Errorf("sync journal: %w", fs.ErrClosed)
	}
	l.step("sync")
	if err := unix.Fdatasync(int(file.Fd())); err != nil {
		s.failed, s.err = all, fmt.Errorf("sync journal %s: %w", l.path(), err)
		l.mu.Lock()
		l.end = size // nobody reads what lies behind an entry that the disk may not have
		l.mu.Unlock()
		return s.err
	}
	s.done = all
	l.step("appended")
	return nil
}
