package kept

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/atomicfile"
)

// The file is a header in the clear and then changes, each sealed with its place, so that none can be turned around or
// put into another file, and one that is left out is missed. The first ones are what there was when the file was made,
// which is done as a whole: a change for each thing, so that what is damaged costs no more than that. The others are
// put at its end, each in one write with one sync. The last one may be torn by a kill: nobody was told that it is kept.

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

// loss is what of a file is of no use.
type loss struct {
	torn    bool // a change was being written when the agent was killed
	damaged bool // something that was kept cannot be read
}

// read has each change of the file be done that can be read.
func (l *log) read(most int, do func(change)) (loss, error) {
	data, err := atomicfile.Read(l.path, int64(most))
	if err != nil {
		return loss{}, err
	}
	l.here = true
	head, is, err := l.key.check(data, l.node)
	if err != nil {
		return loss{}, err
	}
	if is.Version != version { // it is made anew with the first write
		return l.readBefore(head, data[len(head):], is.Version, do)
	}
	s := scan{key: l.key, head: head, rest: data[len(head):]}
	for {
		c, ok := s.next()
		if !ok {
			break
		}
		do(c)
		if s.place == is.First {
			l.base = len(data) - len(s.rest)
		}
	}
	lost := loss{damaged: s.damaged || s.place < is.First}
	lost.torn = !lost.damaged && len(s.rest) > 0
	if !lost.torn && !lost.damaged {
		l.head, l.changes, l.size = head, s.place, len(data)
	}
	return lost, nil
}

// least is how much the file may grow, whatever it had when it was made.
const least = 1 << 20

// full says whether the file has more that is no longer so than what is: it is to be made anew.
func (l *log) full() bool { return len(l.head) == 0 || l.size-l.base > max(l.base, least) }

// begin makes the file anew.
func (l *log) begin(all []change) error {
	head, err := l.key.head(l.node, uint64(len(all)))
	if err != nil {
		return err
	}
	data := head
	for place, c := range all {
		if data, err = l.key.frame(data, head, c, uint64(place)); err != nil {
			return err
		}
	}
	l.head, l.here = nil, true
	if err := atomicfile.WriteSynced(l.path, data, 0o600); err != nil {
		return err
	}
	l.head, l.changes, l.size, l.base = head, uint64(len(all)), len(data), len(data)
	return nil
}

// add puts a change at the end. When it fails the file is to be made anew.
func (l *log) add(c change) error {
	one, err := l.key.frame(nil, l.head, c, l.changes)
	if err != nil {
		return err
	}
	head := l.head
	l.head = nil
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
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
