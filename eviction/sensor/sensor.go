// Package sensor tells when a node runs out of something. The kernel's events say when to look; where it has none for a
// signal, how near the limits are and how fast they come nearer say how soon.
package sensor

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-node/berth/eviction/signal"
)

// Reader reads what the node has left: a signal.Node.
type Reader interface {
	Memory() (signal.Readings, error)
	PIDs() (signal.Readings, error)
	Disks(ctx context.Context) (signal.Readings, error)
}

// Source tells that something of the node comes under pressure, or that a group has met one of its limits. A channel
// that is closed tells no more.
type Source interface {
	Events() <-chan struct{}
}

// Alarm tells when a group has taken more memory.
type Alarm interface {
	Source
	// Set has the alarm tell, from now on, when the group has so many bytes more than now, each of them once. It may
	// take as long as the kernel needs. What was set before is forgotten.
	Set(grown []int64) error
}

// Config is what a Sensor is made of.
type Config struct {
	Node    Reader
	Sources []Source
	// Busy tell that tasks wait for processors. That shortens nothing but process IDs, of which a fork bomb takes many,
	// and is normal where much is to be done: memory and process IDs are looked at, once each time.
	Busy []Source
	// Alarms are of groups that together have what can grow fast. Without any, memory is read the more often the less
	// there is of it.
	Alarms []Alarm
	Log    *slog.Logger
}

// Sensor tells what the node has left, and when to ask.
type Sensor struct {
	config Config
	wake   chan struct{}
	quick  *watcher // memory and process IDs, which cost next to nothing
	disks  *watcher
	asked  asked
	ladder chan []int64 // what the alarms are to be set to, the latest only
	// covered says that the alarms are set, so that nothing needs to be read to know that memory is not taken fast.
	covered atomic.Bool
	fired   atomic.Bool // an alarm, since it was set
	woken   clock
	armed   armed // by the goroutine that looks at memory

	mu     sync.Mutex
	limits map[signal.Signal][]int64
}

// New returns a Sensor, which tells nothing before Run.
func New(c Config) *Sensor {
	s := &Sensor{
		config: c, wake: make(chan struct{}, 1), ladder: make(chan []int64, 1), limits: map[signal.Signal][]int64{},
	}
	s.asked = asked{ask: c.Node.Disks, late: func() { poke(s.wake) }}
	s.quick = newWatcher(s.readQuick, s.quickPace)
	s.disks = newWatcher(c.Node.Disks, slowPace)
	return s
}

// Read reads all signals now. What cannot be read is missing from the answer, and named in the error. File systems that
// take long are missing too, without an error: who reads decides about memory as well, which is gone before a busy disk
// answers. When they have answered he is woken, and the next answer has them.
func (s *Sensor) Read(ctx context.Context) (signal.Readings, error) {
	out, err1 := s.readQuick(ctx)
	disks, err2 := s.asked.read(ctx)
	maps.Copy(out, disks)
	return out, errors.Join(err1, err2)
}

// Quick reads the signals of memory and process IDs now, which takes some microseconds. It can be called at any time.
func (s *Sensor) Quick() (signal.Readings, error) { return s.readQuick(context.Background()) }

// Arm sets the values below which the caller wants to be woken, the most pressing last; it may be called again and
// again.
func (s *Sensor) Arm(limits map[signal.Signal][]int64) {
	kept := make(map[signal.Signal][]int64, len(limits))
	for of, values := range limits {
		kept[of] = slices.Clone(values)
	}
	s.mu.Lock()
	same := maps.EqualFunc(kept, s.limits, slices.Equal)
	s.limits = kept
	s.mu.Unlock()
	if !same {
		poke(s.quick.poked)
		poke(s.disks.poked)
	}
}

// Wake receives when a signal may have crossed a limit, or the time to the next look has passed.
func (s *Sensor) Wake() <-chan struct{} { return s.wake }

// Run looks until ctx ends.
func (s *Sensor) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, source := range s.config.Sources {
		wg.Go(func() { hear(ctx, source, s.event) })
	}
	for _, source := range s.config.Busy {
		wg.Go(func() { hear(ctx, source, func() { poke(s.quick.glances) }) })
	}
	for _, alarm := range s.config.Alarms {
		wg.Go(func() {
			hear(ctx, alarm, func() {
				s.fired.Store(true)
				poke(s.quick.poked)
			})
		})
	}
	if len(s.config.Alarms) > 0 {
		wg.Go(func() { s.setAlarms(ctx) })
	}
	wg.Go(func() { s.quick.run(ctx, s.limitsNow, s.seenQuick) })
	wg.Go(func() { s.disks.run(ctx, s.limitsNow, s.seen) })
	wg.Wait()
}

// event is one of a source: it does not say which signal it is about, as the kernel stalls one thing for want of
// another.
func (s *Sensor) event() {
	poke(s.quick.poked)
	poke(s.disks.poked)
}

func hear(ctx context.Context, source Source, fn func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-source.Events():
			if !ok {
				return
			}
			fn()
		}
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (s *Sensor) limitsNow() map[signal.Signal][]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.limits // it is replaced, never changed
}

func (s *Sensor) readQuick(context.Context) (signal.Readings, error) {
	out, err1 := s.config.Node.Memory()
	pids, err2 := s.config.Node.PIDs()
	maps.Copy(out, pids)
	return out, errors.Join(err1, err2)
}

// seen wakes who waits, if there is news for him.
func (s *Sensor) seen(l look) {
	if l.err != nil {
		s.config.Log.Warn("what the node has left is not known in full", "error", l.err)
	}
	if l.crossed || s.woken.since() >= l.tell {
		s.woken.now()
		poke(s.wake)
	}
}

// clock remembers when something was last done.
type clock struct{ at atomic.Int64 }

func (c *clock) now()                 { c.at.Store(time.Now().UnixNano()) }
func (c *clock) since() time.Duration { return time.Duration(time.Now().UnixNano() - c.at.Load()) }
