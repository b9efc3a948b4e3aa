package signal

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// unlimited is a limit that is none.
const unlimited = math.MaxInt64

const (
	// largest is more than any of the files has. memory.stat of a machine with huge pages of many sizes has some KiB.
	largest = 64 << 10
	// usual is enough for nearly all of them, and short for those of one line. Callers have it on their stacks: the
	// files are read many times a second when memory gets scarce, which is no time to make garbage.
	usual = 4 << 10
	short = 128
)

// readFile reads a small file of the kernel, into room where that is enough. An os.File would cost twice the system
// calls: it would be registered with the runtime's poller, which files of groups wake at once, and read again for its
// end, for which the kernel renders it again.
func readFile(path string, room []byte) ([]byte, error) {
	fd, err := again(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	for {
		n, err := again(func() (int, error) { return unix.Pread(fd, room, 0) })
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: path, Err: err}
		}
		if n < len(room) || n >= largest {
			return room[:min(n, largest)], nil
		}
		room = make([]byte, 2*len(room))
	}
}

// again makes a system call until no signal interrupts it.
func again(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// readNumber reads a file with one number, or "max".
func readNumber(path string) (int64, error) {
	var room [short]byte
	text, err := readFile(path, room[:])
	if err != nil {
		return 0, err
	}
	n, err := parseNumber(string(text))
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", path, err)
	}
	return n, nil
}

// figures are lines of a name and a number, with or without a colon and a unit. A few of many are looked for, so that
// they stay bytes.
type figures []byte

// readFigures are in room where that is enough.
func readFigures(path string, room []byte) (figures, error) {
	text, err := readFile(path, room)
	return figures(text), err
}

// get is find for a figure that is 0 where there is none.
func (f figures) get(name string) int64 {
	n, _ := f.find(name)
	return n
}

// find finds a figure by its name. One that is no number counts as missing, as does a negative one. What is above half
// of the largest number is cut, so that nothing that is computed of two of them overflows.
func (f figures) find(name string) (int64, bool) {
	// An iterator would have the bytes escape to the heap.
	for left := []byte(f); len(left) > 0; {
		var line []byte
		line, left, _ = bytes.Cut(left, []byte("\n"))
		line = bytes.TrimSpace(line)
		if len(line) < len(name) || string(line[:len(name)]) != name {
			continue
		}
		rest, colon := bytes.CutPrefix(line[len(name):], []byte(":"))
		rest, ok := bytes.CutPrefix(rest, []byte(" "))
		if !ok {
			continue
		}
		value, _, _ := bytes.Cut(bytes.TrimSpace(rest), []byte(" "))
		n, err := strconv.ParseInt(string(value), 10, 64)
		if err != nil || n < 0 {
			continue
		}
		if colon {
			n = min(n, math.MaxInt64>>11) // in KiB
		}
		return n, true
	}
	return 0, false
}

// parseNumber reads a number, or "max".
func parseNumber(text string) (int64, error) {
	text = strings.TrimSpace(text)
	if text == "max" {
		return unlimited, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("not a number: %.32q", text)
	}
	return n, nil
}

// parseTasks reads how many tasks there are from /proc/loadavg: "0.20 0.18 0.12 1/80 11206" has 80.
func parseTasks(text string) (int64, error) {
	fields := strings.Fields(text)
	if len(fields) != 5 {
		return 0, fmt.Errorf("loadavg has not five fields: %.64q", text)
	}
	_, all, ok := strings.Cut(fields[3], "/")
	if !ok {
		return 0, fmt.Errorf("loadavg has no count of tasks: %.64q", text)
	}
	return parseNumber(all)
}

// add adds figures that are not negative, and does not overflow.
func add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
