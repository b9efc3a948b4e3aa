package kept

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/atomicfile"
)

// The file is a header in the clear and then changes, each sealed with its place, so that none can be left out,
// turned around or put into another file. The first one is all that there was when the file was made, which is done
// as a whole. The others are put at its end, each in one write with one sync. The last one may be torn by a kill:
// nobody was told that it is kept.

// errTorn is of a change that the writer has not come to the end of.
var errTorn = errors.New("it is torn")

const lengthSize = 4

// log is what is known of the file. It belongs to who writes.
type log struct {
	path string
	node string
	key  key

	here    bool   // there may be a file
	head    []byte // of the file; nil: it is to be made anew
	changes uint64 // in it
	size    int    // bytes in it
	base    int    // of it as it was made
}

// read has each change of the file be done. torn says that the last one is half a change, of no use.
func (l *log) read(most int, do func(change) error) (torn bool, err error) {
	data, err := readBounded(l.path, most)
	if err != nil {
		return false, err
	}
	l.here = true
	head, version, err := l.key.check(data, l.node)
	if err != nil {
		return false, err
	}
	if version == oldVersion {
		c, err := l.readOld(head, data[len(head):])
		if err == nil {
			err = do(c)
		}
		return false, err // it is made anew with the first write
	}
	rest := data[len(head):]
	for i := uint64(0); len(rest) > 0 || i == 0; i++ {
		c, after, err := l.next(head, rest, i)
		switch {
		case errors.Is(err, errTorn) && i > 0:
			return true, nil
		case err != nil:
			return true, err
		}
		if err := do(c); err != nil {
			return true, err
		}
		rest = after
		l.changes = i + 1
		if i == 0 {
			l.base = len(data) - len(rest)
		}
	}
	l.head, l.size = head, len(data)
	return false, nil
}

// next takes a change off what the file has.
func (l *log) next(head, rest []byte, place uint64) (c change, after []byte, err error) {
	if len(rest) < lengthSize {
		return c, nil, errTorn
	}
	n := int64(binary.BigEndian.Uint32(rest))
	rest = rest[lengthSize:]
	if n > int64(len(rest)) || n == 0 {
		return c, nil, errTorn
	}
	plain, err := l.key.open(rest[:n], placed(head, place))
	if err != nil && n == int64(len(rest)) {
		return c, nil, errTorn // the file's length may be on the disk before what it has
	}
	if err != nil {
		return c, nil, err
	}
	if err := json.Unmarshal(plain, &c); err != nil {
		return c, nil, fmt.Errorf("it is damaged: %w", err)
	}
	return c, rest[n:], nil
}

// placed is what a change is held to.
func placed(head []byte, place uint64) []byte {
	return binary.BigEndian.AppendUint64(append([]byte(nil), head...), place)
}

// frame is a change as the file has it.
func (l *log) frame(head []byte, c change, place uint64) ([]byte, error) {
	plain, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	sealed, err := l.key.seal(plain, placed(head, place))
	if err != nil {
		return nil, err
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(sealed))), sealed...), nil
}

// least is how much the file may grow, whatever it had when it was made.
const least = 1 << 20

// full says whether the file has more that is no longer so than what is: it is to be made anew.
func (l *log) full() bool { return len(l.head) == 0 || l.size-l.base > max(l.base, least) }

// begin makes the file anew.
func (l *log) begin(all change) error {
	head, err := l.key.head(l.node)
	if err != nil {
		return err
	}
	one, err := l.frame(head, all, 0)
	if err != nil {
		return err
	}
	data := slices.Concat(head, one)
	l.head, l.here = nil, true
	if err := atomicfile.WriteSynced(l.path, data, 0o600); err != nil {
		return err
	}
	l.head, l.changes, l.size, l.base = head, 1, len(data), len(data)
	return nil
}

// add puts a change at the end. When it fails the file is to be made anew.
func (l *log) add(c change) error {
	one, err := l.frame(l.head, c, l.changes)
	if err != nil {
		return err
	}
	head := l.head
	l.head = nil
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	// Somebody may have put another file there, or cut this one.
	st, err := f.Stat()
	if err == nil && st.Size() != int64(l.size) {
		err = fmt.Errorf("it has %d bytes, and had %d", st.Size(), l.size)
	}
	if err == nil {
		_, err = f.Write(one)
	}
	if err == nil {
		err = unix.Fdatasync(int(f.Fd()))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	l.head, l.changes, l.size = head, l.changes+1, l.size+len(one)
	return nil
}
