package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/disk"
)

// The file is lines of text, so that whatever is torn costs the lines it is in and no others: what is between two line
// ends either has its checksum or is passed over.
//
//	berth-records 1 CRC
//	CRC SEQ TABLE "KEY" JSON
//	CRC SEQ TABLE "KEY"
//
// CRC is CRC-32C of what follows it up to the line's end, in hexadecimal. SEQ grows with each change, and of the lines
// of one key the highest counts, wherever it stands; one without JSON says that the record was deleted.
const (
	header  = "berth-records "
	version = 1
)

// maxFile bounds what is read of a file: records are some hundreds of kilobytes.
const maxFile = 1 << 29

// reserve is how much of the disk the file holds beyond its end, so that on a full one can still be written that
// something has ended or was deleted; new records may not touch the last lowReserve.
const (
	reserve    = 256 << 10
	lowReserve = 64 << 10
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// change is one line.
type change struct {
	seq        uint64
	table, key string
	value      []byte // JSON; nil: deleted
}

func (c *change) line() []byte { return c.appendTo(nil) }

// appendTo appends the line to b.
func (c *change) appendTo(b []byte) []byte {
	at := len(b)
	b = slices.Grow(b, len(c.value)+len(c.key)+len(c.table)+40)
	b = append(b, "00000000 "...)
	b = strconv.AppendUint(b, c.seq, 10)
	b = append(append(b, ' '), c.table...)
	b = strconv.AppendQuoteToASCII(append(b, ' '), c.key)
	if c.value != nil {
		b = append(append(b, ' '), c.value...)
	}
	const hex = "0123456789abcdef"
	sum := crc32.Checksum(b[at+9:], castagnoli)
	for i := range 8 {
		b[at+i] = hex[sum>>(28-4*i)&15]
	}
	return append(b, '\n')
}

// parseLine reads a line without its end.
func parseLine(line []byte) (c change, ok bool) {
	if len(line) < 9 || line[8] != ' ' {
		return c, false
	}
	sum, err := strconv.ParseUint(string(line[:8]), 16, 32)
	if err != nil || crc32.Checksum(line[9:], castagnoli) != uint32(sum) {
		return c, false
	}
	seq, rest, ok := bytes.Cut(line[9:], []byte(" "))
	if !ok {
		return c, false
	}
	if c.seq, err = strconv.ParseUint(string(seq), 10, 64); err != nil {
		return c, false
	}
	table, rest, ok := bytes.Cut(rest, []byte(" "))
	if !ok {
		return c, false
	}
	c.table = string(table)
	quoted := rest
	if i := keyEnd(rest); i > 0 {
		quoted, rest = rest[:i], rest[i:]
	}
	if c.key, err = strconv.Unquote(string(quoted)); err != nil {
		return c, false
	}
	if value, ok := bytes.CutPrefix(rest, []byte(" ")); ok && len(value) > 0 {
		c.value = value
	}
	return c, true
}

// keyEnd is where a quoted key ends.
func keyEnd(b []byte) int {
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return 0
}

// content is what a file has.
type content struct {
	latest map[id]change
	seq    uint64
	bad    int // lines that cannot be read
}

type id struct{ table, key string }

// errNewer says that a newer program has written the file.
var errNewer = errors.New("a newer program has written it")

func parse(b []byte) (content, error) {
	c := content{latest: map[id]change{}}
	ours := len(b) == 0
	for len(b) > 0 {
		line, rest, ended := bytes.Cut(b, []byte("\n"))
		b = rest
		if n, ok := parseHeader(line); ok && ended {
			if n > version {
				return c, fmt.Errorf("format %d: %w", n, errNewer)
			}
			ours = true
			continue
		}
		l, ok := parseLine(line)
		switch {
		case ok:
			c.add(l)
		case ended && len(line) > 0:
			c.bad++
		}
	}
	if !ours && len(c.latest) == 0 {
		c.bad++
	}
	return c, nil
}

func headerLine(format int) string {
	h := fmt.Sprint(header, format)
	return fmt.Sprintf("%s %08x\n", h, crc32.Checksum([]byte(h), castagnoli))
}

func parseHeader(line []byte) (format int, ok bool) {
	v, ok := bytes.CutPrefix(line, []byte(header))
	if !ok {
		return 0, false
	}
	v, _, _ = bytes.Cut(v, []byte(" "))
	format, err := strconv.Atoi(string(v))
	return format, err == nil && string(line)+"\n" == headerLine(format)
}

func (c *content) add(l change) {
	k := id{l.table, l.key}
	if have, ok := c.latest[k]; !ok || have.seq <= l.seq {
		c.latest[k] = l
	}
	c.seq = max(c.seq, l.seq)
}

// journal is an open file to which lines are added.
type journal struct {
	file     *os.File
	end      int64
	reserved int64 // up to where the disk has room for it
}

// append adds lines. scarce is for what may use the last of the room that is held.
func (j *journal) append(b []byte, scarce bool) error {
	if !scarce && j.reserved-j.end < lowReserve+int64(len(b)) {
		if err := j.hold(int64(len(b))); disk.Unwritable(err) {
			return err
		}
	}
	if _, err := j.file.WriteAt(b, j.end); err != nil {
		// Half a line at the end is nothing, and the next one is written over it.
		return errors.Join(bare(err), ignore(j.file.Truncate(j.end)))
	}
	j.end += int64(len(b))
	return nil
}

func ignore(error) error { return nil }

// hold has the disk keep room beyond the end. Where the file system cannot, there is none to be had.
func (j *journal) hold(more int64) error {
	want := reserve + more
	err := unix.Fallocate(int(j.file.Fd()), unix.FALLOC_FL_KEEP_SIZE, j.end, want)
	if err == nil || errors.Is(err, unix.EOPNOTSUPP) {
		j.reserved = j.end + want
		return nil
	}
	return err
}

// bare is the error without the file's name, which the callers have.
func bare(err error) error {
	if p, ok := errors.AsType[*os.PathError](err); ok {
		return p.Err
	}
	return err
}

// open opens the file at path and locks it, for writing if that can be: readonly is why it cannot. It returns
// [os.ErrNotExist] when there is none and it cannot be made.
func openFile(path string) (f *os.File, readonly, err error) {
	for deadline := time.Now().Add(time.Second); ; {
		f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if errors.Is(err, os.ErrNotExist) {
			if err = makeHome(path); err == nil {
				f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
			}
		}
		if err != nil {
			readonly = bare(err)
			if f, err = os.OpenFile(path, os.O_RDONLY, 0); err != nil {
				return nil, readonly, bare(err)
			}
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil && named(f, path) {
			return f, readonly, nil
		}
		f.Close()
		switch {
		case err == nil, errors.Is(err, unix.EINTR): // it was replaced meanwhile
		case !errors.Is(err, unix.EWOULDBLOCK):
			return nil, nil, fmt.Errorf("lock: %w", err)
		case time.Now().After(deadline):
			return nil, nil, ErrLocked
		default:
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// makeHome makes the directory of a file. On a disk that could not be written it may have been missing all the time.
func makeHome(path string) error { return bare(os.MkdirAll(filepath.Dir(path), 0o711)) }

// named says that the file is the one at path.
func named(f *os.File, path string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Stat(path)
	return err == nil && os.SameFile(a, b)
}

// readAll reads a file from its start.
func readAll(f *os.File) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, bare(err)
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("%w: it has %d bytes", errDamaged, info.Size())
	}
	b := make([]byte, info.Size())
	if n, err := f.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return b[:n], bare(err)
	}
	return b, nil
}

// compose is a whole file.
func compose(changes func(yield func(change))) []byte {
	b := []byte(headerLine(version))
	changes(func(c change) { b = c.appendTo(b) })
	return b
}

// create writes a new file beside path, locked, which rename makes the one at path.
func create(path string, b []byte) (*journal, error) {
	f, err := os.OpenFile(path+".new", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, bare(err)
	}
	j := &journal{file: f}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		err = j.append(b, true)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close(), ignore(os.Remove(path+".new")))
	}
	return j, nil
}

func (j *journal) rename(path string) error { return bare(os.Rename(path+".new", path)) }

// validTable says that a name of a table has nothing that a line is parted by.
func validTable(name string) bool { return name != "" && !strings.ContainsAny(name, " \n\"") }

// validValue says that a record's value is one line of JSON.
func validValue(v []byte) bool { return json.Valid(v) && !bytes.ContainsAny(v, "\n\r") }
