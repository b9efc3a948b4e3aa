package pressure

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups/internal/kernfs"
)

// Growth tells when an amount of memory has grown past marks. The kernel has no thresholds on v2. It does count who is
// above memory.high, but it slows them down and takes their file cache as long as that is there, which outlives its
// writer, and whoever writes it reclaims what is above. So the amount is read, as often as the next mark could have
// been passed, by a timer of the kernel's and the Watcher's thread. Without marks nothing is read, and nothing is ever
// written.
type Growth struct {
	w      *Watcher
	amount func() (int64, error)
	rate   int64 // bytes a second
	events chan struct{}

	mu    sync.Mutex
	id    uint64
	timer int     // -1: there is none any more
	marks []int64 // those that were not passed yet, ascending
}

// Bounds of the time between two readings. A timer of less than the shortest would cost more than what it could tell.
const shortest, longest = 20 * time.Millisecond, 10 * time.Second

// GroupGrowth watches the memory usage of a v2 group, which grows by rate bytes a second at most.
func (w *Watcher) GroupGrowth(group string, rate int64) (*Growth, error) {
	return w.growth(rate, func() (int64, error) { return readBytes(group + "/memory.current") })
}

// MachineGrowth watches how much less memory is available on the machine, which is gone at rate bytes a second at most.
func (w *Watcher) MachineGrowth(rate int64) (*Growth, error) {
	return w.growth(rate, func() (int64, error) {
		available, err := memAvailable()
		return -available, err
	})
}

func (w *Watcher) growth(rate int64, amount func() (int64, error)) (*Growth, error) {
	if _, err := amount(); err != nil {
		return nil, unsupported("growth of memory", err)
	}
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make timer: %w", err)
	}
	g := &Growth{w: w, amount: amount, rate: max(rate, 1), events: make(chan struct{}, 1), timer: fd}
	g.id, err = w.add(unix.EPOLLIN, &watch{fd: fd, happened: func(uint32) bool { return g.look(fd) }, gone: g.gone})
	if err != nil {
		return nil, fmt.Errorf("watch growth of memory: %w", err)
	}
	return g, nil
}

// Events receives after a mark was passed. It is closed when the group is gone, and when the Watcher or the Growth is
// closed.
func (g *Growth) Events() <-chan struct{} { return g.events }

// Set has events told when there are so many bytes more than now, each once. What was set before is forgotten.
func (g *Growth) Set(grown []int64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.timer < 0 {
		return errors.New("set marks of memory: closed")
	}
	now, err := g.amount()
	if err != nil {
		return err
	}
	g.marks = nil
	for _, by := range slices.Sorted(slices.Values(grown)) {
		if by > 0 && by <= noMark {
			g.marks = append(g.marks, now+by)
		}
	}
	return g.wait(now)
}

// look reads when the timer has ended.
func (g *Growth) look(fd int) bool {
	drain(fd)
	g.mu.Lock()
	defer g.mu.Unlock()
	now, err := g.amount()
	if err != nil {
		return false // the group is gone
	}
	if left := ahead(g.marks, now); len(left) < len(g.marks) {
		g.marks = left
		tell(g.events)
	}
	return g.wait(now) == nil
}

// wait sets the timer to when the next mark can be passed; without one it is none.
func (g *Growth) wait(now int64) error {
	var spec unix.ItimerSpec
	if len(g.marks) > 0 {
		spec.Value = unix.NsecToTimespec(g.until(g.marks[0] - now).Nanoseconds())
	}
	if err := unix.TimerfdSettime(g.timer, 0, &spec, nil); err != nil {
		return fmt.Errorf("set timer: %w", err)
	}
	return nil
}

// until is how long it takes at least until there are so many bytes more.
func (g *Growth) until(left int64) time.Duration {
	seconds := float64(left) / float64(g.rate)
	if seconds >= longest.Seconds() {
		return longest
	}
	return max(shortest, time.Duration(seconds*float64(time.Second)))
}

// gone is called before the timer is closed.
func (g *Growth) gone() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.timer, g.marks = -1, nil
	close(g.events)
}

// Close ends the watching; it can be repeated.
func (g *Growth) Close() { g.w.remove(g.id) }

// near is how much below a mark counts as having passed it: the kernel counts memory in batches.
const near = 1 << 20

// ahead are the marks that are still to come.
func ahead(marks []int64, amount int64) []int64 {
	i := slices.IndexFunc(marks, func(m int64) bool { return m > amount+near })
	if i < 0 {
		return nil
	}
	return marks[i:]
}

// memAvailable is what the kernel estimates can be had without swapping, in bytes.
func memAvailable() (int64, error) {
	text, err := kernfs.ReadString("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		if name != "MemAvailable" {
			continue
		}
		kib, err := parseBytes(strings.TrimSuffix(strings.TrimSpace(value), " kB"))
		if err != nil || kib > noMark>>10 {
			return 0, fmt.Errorf("read MemAvailable of /proc/meminfo: not a number of KiB: %.32q", value)
		}
		return kib << 10, nil
	}
	return 0, fmt.Errorf("read MemAvailable of /proc/meminfo: %w", unix.ENOENT)
}
