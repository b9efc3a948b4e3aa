package kept

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
)

// A change in the file is a mark, its place and its length in the clear, and then what is sealed. By the mark the next
// one is found where something before it is damaged, were it a length.
const (
	mark      = "\xffkept\xfe\r\n"
	frameHead = len(mark) + 8 + 4
)

// placed is what a change is held to.
func placed(head []byte, place uint64) []byte {
	return binary.BigEndian.AppendUint64(bytes.Clone(head), place)
}

// frame puts a change at the end of data.
func (k key) frame(data, head []byte, c change, place uint64) ([]byte, error) {
	plain, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	sealed, err := k.seal(plain, placed(head, place))
	if err != nil {
		return nil, err
	}
	data = binary.BigEndian.AppendUint64(append(data, mark...), place)
	return append(binary.BigEndian.AppendUint32(data, uint32(len(sealed))), sealed...), nil
}

// scan takes changes off a file.
type scan struct {
	key     key
	head    []byte
	rest    []byte
	place   uint64 // of the next
	damaged bool   // something between changes is none, or one is missing
}

// next is the next change that can be read. Without one the rest has none: it is empty, torn or damaged.
func (s *scan) next() (c change, ok bool) {
	for at := 0; ; at++ {
		found := bytes.Index(s.rest[at:], []byte(mark))
		if found < 0 {
			// Of what is torn there is one change at most.
			s.damaged = s.damaged || bytes.Count(s.rest, []byte(mark)) > 1
			return change{}, false
		}
		at += found
		c, place, after, ok := s.take(s.rest[at:])
		if !ok {
			continue
		}
		s.damaged = s.damaged || at > 0 || place != s.place
		s.rest, s.place = after, place+1
		return c, true
	}
}

// take reads what begins with a mark, if it is a change that comes after those before.
func (s *scan) take(frame []byte) (c change, place uint64, after []byte, ok bool) {
	if len(frame) < frameHead {
		return c, 0, nil, false
	}
	place = binary.BigEndian.Uint64(frame[len(mark):])
	n := int64(binary.BigEndian.Uint32(frame[len(mark)+8:]))
	sealed := frame[frameHead:]
	if place < s.place || n > int64(len(sealed)) {
		return c, 0, nil, false
	}
	plain, err := s.key.open(sealed[:n], placed(s.head, place))
	if err != nil || json.Unmarshal(plain, &c) != nil {
		return c, 0, nil, false
	}
	return c, place, sealed[n:], true
}
