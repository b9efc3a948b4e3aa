// Package logs reads the logs of containers: files in the CRI's log format, one current and some rotated away beside
// it.
//
// The writer rotates by renaming PATH to PATH.<timestamp> and opening a new PATH, so the files of one container in the
// order of their names are one stream. A reader keeps its place by inode, and so loses no line to a rotation under its
// feet.
package logs

import (
	"bytes"
	"fmt"
	"time"
)

// Entry is one line of a file in the CRI's log format: "<RFC 3339 time> <stdout|stderr> <F|P> <text>". Tag P says that
// the writer cut a long line and that the next entry goes on with it.
type Entry struct {
	Time    []byte
	Stderr  bool
	Partial bool
	Text    []byte // without the line's end
}

// parse takes a line without its end apart. The entry's slices point into it.
func parse(line []byte) (Entry, error) {
	var e Entry
	stamp, rest, ok1 := bytes.Cut(line, []byte{' '})
	stream, rest, ok2 := bytes.Cut(rest, []byte{' '})
	tags, text, _ := bytes.Cut(rest, []byte{' '})
	if !ok1 || !ok2 {
		return e, fmt.Errorf("not a line of a container log: %.40q", line)
	}
	switch string(stream) {
	case "stdout":
	case "stderr":
		e.Stderr = true
	default:
		return e, fmt.Errorf("unknown stream %.20q in container log", stream)
	}
	// The tags are a list separated by colons, of which the first is the only one there is so far.
	tag, _, _ := bytes.Cut(tags, []byte{':'})
	switch string(tag) {
	case "F":
	case "P":
		e.Partial = true
	default:
		return e, fmt.Errorf("unknown tag %.20q in container log", tag)
	}
	e.Time, e.Text = stamp, text
	return e, nil
}

func (e Entry) time() (time.Time, error) {
	t, err := time.Parse(time.RFC3339Nano, string(e.Time))
	if err != nil {
		return t, fmt.Errorf("parse time of log line: %w", err)
	}
	return t, nil
}
