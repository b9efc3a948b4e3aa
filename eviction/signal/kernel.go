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

// group is the memory of a control group, in bytes.
type group struct {
	usage        int64
	limit        int64
	inactiveFile int64
	activeFile   int64
	slab         int64 // kernel objects that can be dropped
}

// workingSet is kubelet's measure.
func (g group) workingSet() int64 { return max(0, g.usage-g.inactiveFile) }

// unreclaimable is what the kernel cannot give to others, the counterpart of MemAvailable for a group: all file
// cache can be dropped, be it active or not. What of it has to be written first counts as well, as in MemAvailable:
// who writes much is slowed down for it, and his end would not have it written any sooner.
func (g group) unreclaimable() int64 {
	return max(0, g.usage-add(g.slab, add(g.inactiveFile, g.activeFile)))
}

// readGroup reads the group of a directory, of either version of control groups. Its files cannot be read at one
// moment. What was read into the cache between them would look like memory that is in use, which is gigabytes when
// others have the processor: so the usage is the lesser of that before and that after.
func readGroup(dir string) (group, error) {
	before := int64(math.MaxInt64)
	for _, file := range []string{"/memory.current", "/memory.usage_in_bytes"} {
		if n, err := readNumber(dir + file); err == nil {
			before = n
		}
	}
	g, err := readGroupOnce(dir)
	g.usage = min(g.usage, before)
	return g, err
}

func readGroupOnce(dir string) (group, error) {
	var room [usual]byte
	stat, err := readFigures(dir+"/memory.stat", room[:])
	if err != nil {
		return group{}, err
	}
	if limit, v1 := stat.find("hierarchical_memory_limit"); v1 {
		return readGroupV1(dir, limit, stat)
	}
	g := group{
		limit:        unlimited,
		inactiveFile: stat.get("inactive_file"),
		activeFile:   stat.get("active_file"),
		slab:         stat.get("slab_reclaimable"),
	}
	g.usage, err = readNumber(dir + "/memory.current")
	if errors.Is(err, fs.ErrNotExist) { // the root group has neither this nor a limit
		g.usage = add(stat.get("anon"), stat.get("file"))
		return g, nil
	}
	if err != nil {
		return group{}, err
	}
	if g.limit, err = readNumber(dir + "/memory.max"); err != nil {
		return group{}, err
	}
	return g, nil
}

// readGroupV1 takes the figures with total_ in front, those of the group and of what is below it. Version 1 has no
// account of kernel objects that can be dropped.
func readGroupV1(dir string, limit int64, stat figures) (g group, err error) {
	g = group{limit: limit, inactiveFile: stat.get("total_inactive_file"), activeFile: stat.get("total_active_file")}
	if g.limit >= noLimitV1 {
		g.limit = unlimited
	}
	if g.usage, err = readNumber(dir + "/memory.usage_in_bytes"); err != nil {
		return group{}, err
	}
	return g, nil
}

// noLimitV1 is near the largest multiple of any page size, which v1 says where there is no limit.
const noLimitV1 = math.MaxInt64 - 1<<20

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
