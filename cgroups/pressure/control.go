package pressure

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups/internal/kernfs"
)

// Level is how hard the kernel has to work to find memory for a v1 group.
type Level string

// The levels of memory.pressure_level: it reclaims at all, it has some trouble, it is about to kill.
const (
	Low      Level = "low"
	Medium   Level = "medium"
	Critical Level = "critical"
)

// Level tells when a v1 group, or a group below it, meets a level of pressure.
func (w *Watcher) Level(group string, level Level) (*Source, error) {
	fd, err := eventfd()
	if err != nil {
		return nil, err
	}
	// Without "hierarchy" a group that is told itself keeps the event from those above it.
	if err := control(group, "memory.pressure_level", fd, string(level)+",hierarchy"); err != nil {
		unix.Close(fd)
		return nil, err
	}
	s, err := w.source(fd, unix.EPOLLIN, func(uint32) (news, more bool) { return drain(fd) > 0, true })
	if err != nil {
		return nil, fmt.Errorf("watch %s/memory.pressure_level: %w", group, err)
	}
	return s, nil
}

// control has the kernel write to an eventfd after events of a v1 file.
func control(group, file string, eventfd int, args string) error {
	path := group + "/" + file
	fd, err := kernfs.Retry(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return unsupported(path, err)
	}
	defer unix.Close(fd) // the kernel keeps the file as long as it needs it
	if err := kernfs.Write(group, "cgroup.event_control", fmt.Sprintf("%d %d %s", eventfd, fd, args)); err != nil {
		return unsupported(path, err)
	}
	return nil
}

// Usage tells when the memory usage of a v1 group passes marks. The root group has a usage as well: all file cache and
// anonymous memory.
type Usage struct {
	w      *Watcher
	group  string
	events chan struct{}

	mu     sync.Mutex // held while marks are set, which takes the kernel some milliseconds each
	id     uint64     // of the watch with the marks that count
	closed bool
}

// Usage watches the usage of a v1 group. It tells nothing before Set.
func (w *Watcher) Usage(group string) (*Usage, error) {
	for _, file := range []string{"memory.usage_in_bytes", "cgroup.event_control"} {
		if !kernfs.Exists(group + "/" + file) {
			return nil, unsupported(group+"/"+file, unix.ENOENT)
		}
	}
	return &Usage{w: w, group: group, events: make(chan struct{}, 1)}, nil
}

// Events receives after the usage has passed a mark, up or down, and after the group was removed.
func (u *Usage) Events() <-chan struct{} { return u.events }

// Set has events told when the group uses so many bytes more than now. Marks set before count until these do.
func (u *Usage) Set(grown []int64) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return errors.New("set marks of memory usage: closed")
	}
	fd, err := eventfd()
	if err != nil {
		return err
	}
	before, err := readBytes(u.group + "/memory.usage_in_bytes")
	if err != nil {
		unix.Close(fd)
		return err
	}
	id, err := u.w.add(unix.EPOLLIN, &watch{
		fd: fd,
		happened: func(uint32) bool {
			if drain(fd) > 0 {
				tell(u.events)
			}
			return true
		},
		gone: func() {},
	})
	if err != nil {
		return fmt.Errorf("watch memory usage of %s: %w", u.group, err)
	}
	// The nearest first, as it is needed first.
	for _, by := range slices.Sorted(slices.Values(grown)) {
		if by <= 0 || by > noMark-before {
			continue
		}
		if err := control(u.group, "memory.usage_in_bytes", fd, strconv.FormatInt(before+by, 10)); err != nil {
			u.w.remove(id)
			return err
		}
	}
	u.w.remove(u.id)
	u.id = id
	// The kernel says nothing of a mark that was passed before it was there.
	if now, err := readBytes(u.group + "/memory.usage_in_bytes"); err == nil && passed(grown, now-before) {
		tell(u.events)
	}
	return nil
}

// noMark is more than any machine has.
const noMark = 1 << 60

func passed(grown []int64, by int64) bool {
	return slices.ContainsFunc(grown, func(g int64) bool { return g > 0 && g <= by })
}

// Close forgets the marks. The channel stays open, and says nothing more.
func (u *Usage) Close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed = true
	u.w.remove(u.id)
}

// readBytes reads a file with one number, or "max".
func readBytes(path string) (int64, error) {
	text, err := kernfs.ReadString(path)
	if err != nil {
		return 0, err
	}
	n, err := parseBytes(text)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", path, err)
	}
	return n, nil
}
