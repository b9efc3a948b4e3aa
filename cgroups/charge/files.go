package charge

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups/internal/kernfs"
)

const (
	// largest is more than memory.stat has, also on a machine with huge pages of many sizes.
	largest = 16 << 10
	// noLimit is near the largest multiple of any page size, which version 1 says where there is no limit.
	noLimit = math.MaxInt64 - 1<<20
)

// stat is what is needed of memory.stat, in bytes.
type stat struct {
	v1                       bool
	limit                    int64 // version 1 only
	anon, file               int64
	inactiveFile, activeFile int64
	slab                     int64 // that can be dropped
	kernel                   int64 // all of it; version 2 only
	parts                    int64 // of kernel, of a kernel before 5.18, which does not tell the sum
	others                   int64
}

func (s *stat) known() int64 {
	return add(add(s.anon, s.file), add(max(s.kernel, s.parts), s.others))
}

// parseStat reads memory.stat. What is missing, or no number, is 0. Of version 1 the lines with total_ in front count,
// those of the group and of what is below it.
func parseStat(text []byte) stat {
	s := stat{limit: Unlimited}
	// An iterator would have the bytes escape to the heap.
	for left := text; len(left) > 0; {
		var line []byte
		line, left, _ = bytes.Cut(left, []byte("\n"))
		name, value, ok := bytes.Cut(line, []byte(" "))
		if !ok {
			continue
		}
		if n, err := parseNumber(value); err == nil {
			s.take(name, n)
		}
	}
	return s
}

func (s *stat) take(name []byte, n int64) {
	switch string(name) {
	case "hierarchical_memory_limit":
		if s.v1 = true; n < noLimit {
			s.limit = n
		}
	case "total_rss", "anon":
		s.anon = n
	case "total_cache", "file":
		s.file = n
	case "total_inactive_file":
		s.inactiveFile = n
	case "total_active_file":
		s.activeFile = n
	case "inactive_file": // of version 1, where the sum comes later, of the group alone
		s.inactiveFile = n
	case "active_file":
		s.activeFile = n
	case "slab_reclaimable":
		s.slab = n
	case "kernel":
		s.kernel = n
	case "kernel_stack", "pagetables", "percpu", "slab":
		s.parts = add(s.parts, n)
	case "sock", "zswap", "hugetlb":
		s.others = add(s.others, n)
	}
}

// number is an open file of one number, which is another one at each look. The zero value is none.
type number struct {
	fd   int // one more than the descriptor
	path string
}

func openNumber(path string) (number, error) {
	fd, err := kernfs.Retry(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return number{}, fmt.Errorf("open %s: %w", path, err)
	}
	return number{fd + 1, path}, nil
}

func (f number) open() bool { return f.fd > 0 }

func (f number) close() {
	if f.open() {
		_ = unix.Close(f.fd - 1) // it was read only
	}
}

// read reads it, from its start.
func (f number) read() (int64, error) {
	if !f.open() {
		return 0, nil
	}
	var room [64]byte
	n, err := kernfs.Pread(f.fd-1, room[:])
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", f.path, err)
	}
	v, err := parseNumber(room[:n])
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", f.path, err)
	}
	return v, nil
}

func readNumber(path string) (int64, error) {
	f, err := openNumber(path)
	if err != nil {
		return 0, err
	}
	defer f.close()
	return f.read()
}

// parseNumber reads a number, or "max".
func parseNumber(text []byte) (int64, error) {
	text = bytes.TrimSpace(text)
	if string(text) == "max" {
		return Unlimited, nil
	}
	n, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil || n < 0 {
		return 0, errors.New("not a number: " + strconv.Quote(string(text[:min(len(text), 32)])))
	}
	return n, nil
}
