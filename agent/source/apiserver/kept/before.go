package kept

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
)

// After an upgrade the machine may boot without its API server, too, so that files of the formats before are read.

// errTorn is of something that the writer has not come to the end of.
var errTorn = errors.New("it is torn")

// readBefore has what a file has be done that is of a format before.
func (l *log) readBefore(head, rest []byte, format int, do func(change)) (loss, error) {
	if format == wholeVersion {
		c, err := l.readWhole(head, rest)
		if err == nil {
			do(c)
		}
		return loss{}, err
	}
	for place := uint64(0); len(rest) > 0 || place == 0; place++ {
		c, after, err := l.unmarked(head, rest, place)
		switch {
		case errors.Is(err, errTorn) && place > 0:
			return loss{torn: true}, nil
		case err != nil && place > 0:
			return loss{damaged: true}, nil
		case err != nil:
			return loss{}, err
		}
		do(c)
		rest = after
	}
	return loss{}, nil
}

const lengthSize = 4

// unmarked takes a change off a file of the format without marks, in which the first one has all that there was.
func (l *log) unmarked(head, rest []byte, place uint64) (c change, after []byte, err error) {
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

// wholeContent is what a file of the first format has, all of it sealed as one.
type wholeContent struct {
	Pods    [][]byte `json:"pods"`
	Objects []item   `json:"objects"`
	// Of lists which objects each of the pods needs.
	Of [][]int `json:"of"`
}

// readWhole makes one change of such a file.
func (l *log) readWhole(head, sealed []byte) (c change, err error) {
	plain, err := l.key.open(sealed, head)
	if err != nil {
		return c, err
	}
	var old wholeContent
	if err := json.Unmarshal(plain, &old); err != nil {
		return c, err
	}
	if len(old.Of) != len(old.Pods) {
		return c, fmt.Errorf("it has %d pods, and the objects of %d", len(old.Pods), len(old.Of))
	}
	for i := range old.Objects {
		old.Objects[i].Key = fmt.Sprint(i)
	}
	c.Objects = old.Objects
	for i, data := range old.Pods {
		p := podItem{UID: fmt.Sprint(i), Data: data}
		for _, at := range old.Of[i] {
			p.Of = append(p.Of, fmt.Sprint(at))
		}
		c.Pods = append(c.Pods, p)
	}
	return c, nil
}
