package sensor

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-node/berth/eviction/signal"
)

// node has what the test says, and counts who asks.
type node struct {
	mu     sync.Mutex
	memory func(at time.Duration) int64
	disk   func(at time.Duration) int64
	err    error
	start  time.Time
	quick  int
	slow   int
	delay  time.Duration // of disks
}

func (n *node) reading(of signal.Signal, value func(time.Duration) int64, looks *int) (signal.Readings, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	*looks++
	if n.err != nil {
		return signal.Readings{}, n.err
	}
	now := time.Now()
	return signal.Readings{of: {Available: value(now.Sub(n.start)), Capacity: 64 * gib, Time: now}}, nil
}

func (n *node) Memory() (signal.Readings, error) {
	return n.reading(signal.MemoryAvailable, n.memory, &n.quick)
}

func (n *node) PIDs() (signal.Readings, error) { return signal.Readings{}, nil }

func (n *node) Disks(context.Context) (signal.Readings, error) {
	time.Sleep(n.delay)
	return n.reading(signal.NodeFsAvailable, n.disk, &n.slow)
}

// counts are how often was asked since the last time.
func (n *node) counts() (quick, slow int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	quick, slow = n.quick, n.slow
	n.quick, n.slow = 0, 0
	return quick, slow
}

func constant(v int64) func(time.Duration) int64 { return func(time.Duration) int64 { return v } }

// alarm remembers what it was set to.
type alarm struct {
	events chan struct{}
	mu     sync.Mutex
	sets   [][]int64
	err    error
}

func (a *alarm) Events() <-chan struct{} { return a.events }

func (a *alarm) Set(grown []int64) error {
	time.Sleep(50 * time.Millisecond) // the kernel takes its time
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sets = append(a.sets, grown)
	return a.err
}

func (a *alarm) taken() [][]int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	sets := a.sets
	a.sets = nil
	return sets
}

// run runs a sensor of a node in a world whose clock moves when all wait.
func run(t *testing.T, n *node, sources []Source, alarms []Alarm, fn func(s *Sensor)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n.start = time.Now()
		for _, a := range alarms {
			a.(*alarm).events = make(chan struct{}, 1)
		}
		for _, s := range sources {
			s.(*alarm).events = make(chan struct{}, 1)
		}
		s := New(Config{Node: n, Sources: sources, Alarms: alarms, Log: slog.New(slog.DiscardHandler)})
		s.Arm(map[signal.Signal][]int64{signal.MemoryAvailable: {500 * mib, 100 * mib}, signal.NodeFsAvailable: {gib}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { s.Run(ctx); close(ended) }()
		fn(s)
		cancel()
		<-ended
	})
}

// wakes counts the wakes of a time.
func wakes(s *Sensor, during time.Duration) int {
	end := time.NewTimer(during)
	defer end.Stop()
	for n := 0; ; {
		select {
		case <-s.Wake():
			n++
		case <-end.C:
			return n
		}
	}
}

func TestIdle(t *testing.T) {
	n := &node{memory: constant(10 * gib), disk: constant(3 * gib)}
	a := &alarm{}
	run(t, n, []Source{&alarm{}}, []Alarm{a}, func(s *Sensor) {
		wakes(s, time.Minute)
		n.counts()
		if got := wakes(s, 10*time.Minute); got > 61 || got < 59 {
			t.Errorf("woken %d times in ten idle minutes", got)
		}
		if quick, slow := n.counts(); quick > 61 || slow > 61 {
			t.Errorf("%d looks at memory and %d at disks in ten idle minutes", quick, slow)
		}
		if sets := a.taken(); len(sets) != 1 {
			t.Errorf("alarms were set %d times: %v", len(sets), sets)
		}
	})
}

// TestNobodyTells: without an alarm memory is looked at as often as it could be gone.
func TestNobodyTells(t *testing.T) {
	n := &node{memory: constant(gib), disk: constant(3 * gib)}
	failing := &alarm{err: errors.New("no thresholds")}
	run(t, n, nil, []Alarm{failing}, func(s *Sensor) {
		wakes(s, time.Minute)
		n.counts()
		wakes(s, time.Minute)
		if quick, _ := n.counts(); quick < 240 {
			t.Errorf("%d looks in a minute at memory that can be gone in a fourth of a second", quick)
		}
	})
}

// TestBomb takes two gigabytes a second after a long rest; the kernel tells of one step of the ladder.
func TestBomb(t *testing.T) {
	begin := 5 * time.Minute
	after := func(bytes int64) time.Duration { return time.Duration(bytes * int64(time.Second) / gib / 2) }
	n := &node{disk: constant(3 * gib), memory: func(at time.Duration) int64 {
		return max(0, 8*gib-int64(max(0, at-begin).Seconds()*2*gib))
	}}
	a := &alarm{}
	run(t, n, nil, []Alarm{a}, func(s *Sensor) {
		wakes(s, begin)
		// Half the way to the soft limit.
		time.Sleep(after((8*gib - 500*mib) / 2))
		select {
		case <-s.Wake():
		default:
		}
		a.events <- struct{}{}
		for _, limit := range []int64{500 * mib, 100 * mib} {
			at := begin + after(8*gib-limit)
			for n.memory(time.Since(n.start)) >= limit {
				<-s.Wake()
			}
			if late := time.Since(n.start) - at; late > 25*time.Millisecond {
				t.Errorf("limit %d MiB was told of %v after it was crossed", limit/mib, late)
			}
		}
		if sets := a.taken(); len(sets) != 1 {
			t.Errorf("alarms were set %d times, the last time while memory went: %v", len(sets), sets)
		}
	})
}

// TestDiskFills: nobody tells of a file system; who waits hears of it often enough to draw a slope.
func TestDiskFills(t *testing.T) {
	n := &node{memory: constant(10 * gib), disk: func(at time.Duration) int64 {
		return max(0, 20*gib-int64(at.Seconds()*100*mib))
	}}
	run(t, n, nil, []Alarm{&alarm{}}, func(s *Sensor) {
		crossing := time.Duration(19*gib/(100*mib)) * time.Second
		heard := 0
		for n.disk(time.Since(n.start)) >= gib {
			<-s.Wake()
			if left := crossing - time.Since(n.start); left > 0 && left < 30*time.Second {
				heard++
			}
		}
		if late := time.Since(n.start) - crossing; late > time.Second {
			t.Errorf("told of %v after it was crossed", late)
		}
		if heard < 20 {
			t.Errorf("heard of it %d times in the last half minute", heard)
		}
	})
}

func TestSourceWakes(t *testing.T) {
	left := int64(10 * gib)
	n := &node{disk: constant(3 * gib)}
	n.memory = func(time.Duration) int64 { return left }
	source := &alarm{}
	run(t, n, []Source{source}, []Alarm{&alarm{}}, func(s *Sensor) {
		wakes(s, time.Minute)
		n.counts()
		n.mu.Lock()
		left = 50 * mib
		n.mu.Unlock()
		before := time.Now()
		source.events <- struct{}{}
		<-s.Wake()
		if took := time.Since(before); took > 20*time.Millisecond {
			t.Errorf("took %v", took)
		}
		close(source.events) // the group is gone
		wakes(s, time.Second)
		if quick, slow := n.counts(); quick > 40 || quick < held || slow > 20 || slow < held {
			t.Errorf("%d and %d looks after one event", quick, slow)
		}
	})
}

// TestStorm: however often the kernel tells, there is some rest between two looks, and more of it while no limit is
// near.
func TestStorm(t *testing.T) {
	for name, tt := range map[string]struct{ memory, disk, least, most, leastDisks, mostDisks int }{
		"near": {memory: gib, disk: 3 * gib, least: 100, most: 220, leastDisks: 20, mostDisks: 45},
		"far":  {memory: 100 * gib, disk: 100 * gib, least: 5, most: 12, leastDisks: 5, mostDisks: 12},
	} {
		t.Run(name, func(t *testing.T) {
			n := &node{memory: constant(int64(tt.memory)), disk: constant(int64(tt.disk))}
			source := &alarm{}
			run(t, n, []Source{source}, []Alarm{&alarm{}}, func(s *Sensor) {
				wakes(s, time.Minute)
				n.counts()
				for range 1000 {
					poke(source.events)
					time.Sleep(time.Millisecond)
				}
				quick, slow := n.counts()
				if quick > tt.most || quick < tt.least || slow > tt.mostDisks || slow < tt.leastDisks {
					t.Errorf("%d looks at memory and %d at disks in a second of events", quick, slow)
				}
			})
		})
	}
}

// TestFar: a node that has much to do is told of stalls every second. Far from all limits one look is the answer to
// each.
func TestFar(t *testing.T) {
	n := &node{memory: constant(100 * gib), disk: constant(100 * gib)}
	source := &alarm{}
	run(t, n, []Source{source}, []Alarm{&alarm{}}, func(s *Sensor) {
		wakes(s, time.Minute)
		n.counts()
		for range 60 {
			poke(source.events)
			time.Sleep(time.Second)
		}
		if quick, slow := n.counts(); quick > 68 || quick < 59 || slow > 68 || slow < 59 {
			t.Errorf("%d looks at memory and %d at disks in a minute with 60 events", quick, slow)
		}
	})
}

// TestFarFill: what begins to go far from all limits is heard of in time, though each event is answered with one look.
func TestFarFill(t *testing.T) {
	begin := 5*time.Minute + 700*time.Millisecond
	n := &node{memory: func(at time.Duration) int64 { return max(0, 100*gib-int64(max(0, at-begin).Seconds()*2*gib)) }}
	n.disk = func(at time.Duration) int64 { return max(0, 100*gib-int64(max(0, at-begin).Seconds()*gib)) }
	source, a := &alarm{}, &alarm{}
	run(t, n, []Source{source}, []Alarm{a}, func(s *Sensor) {
		wakes(s, begin)
		a.taken()
		var told sync.WaitGroup
		defer told.Wait()
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		told.Go(func() { // the kernel tells of the stalls, and of the first half
			for i := 0; rest(ctx, time.Second); i++ {
				poke(source.events)
				if i == 25 {
					poke(a.events)
				}
			}
		})
		for _, of := range []struct {
			left  func(time.Duration) int64
			limit int64
			pace  float64 // GiB a second
		}{{n.memory, 500 * mib, 2}, {n.memory, 100 * mib, 2}, {n.disk, gib, 1}} {
			for of.left(time.Since(n.start)) >= of.limit {
				<-s.Wake()
			}
			crossing := begin + time.Duration(float64(100*gib-of.limit)/of.pace/gib*float64(time.Second))
			if late := time.Since(n.start) - crossing; late > 110*time.Millisecond {
				t.Errorf("limit %d MiB was told of %v after it was crossed", of.limit/mib, late)
			}
		}
	})
}

// TestRearm: what others free moves the limit away, and other limits are other marks.
func TestRearm(t *testing.T) {
	left := int64(2 * gib)
	n := &node{disk: constant(3 * gib)}
	n.memory = func(time.Duration) int64 { return left }
	a := &alarm{}
	run(t, n, nil, []Alarm{a}, func(s *Sensor) {
		wakes(s, time.Minute)
		sets := a.taken()
		if len(sets) != 1 || sets[0][0] != (2*gib-500*mib)/2 || sets[0][len(sets[0])-1] != 2*gib-100*mib {
			t.Fatalf("set to %v", sets)
		}
		n.mu.Lock()
		left = 20 * gib
		n.mu.Unlock()
		wakes(s, time.Minute)
		if sets = a.taken(); len(sets) != 1 || sets[0][0] != (20*gib-500*mib)/2 {
			t.Errorf("after memory was freed: set to %v", sets)
		}
		a.events <- struct{}{} // file cache grew: nothing is missing
		wakes(s, time.Minute)
		if sets = a.taken(); len(sets) != 1 {
			t.Errorf("after a mark was passed: set to %v", sets)
		}
		s.Arm(map[signal.Signal][]int64{signal.MemoryAvailable: {gib}})
		wakes(s, time.Minute)
		if sets = a.taken(); len(sets) != 1 || sets[0][len(sets[0])-1] != 19*gib {
			t.Errorf("after other limits: set to %v", sets)
		}
		s.Arm(map[signal.Signal][]int64{signal.MemoryAvailable: {gib}})
		wakes(s, time.Minute)
		if sets = a.taken(); len(sets) != 0 {
			t.Errorf("after the same limits: set to %v", sets)
		}
	})
}

func TestReadErrors(t *testing.T) {
	n := &node{memory: constant(gib), disk: constant(gib), err: errors.New("nothing there")}
	run(t, n, nil, nil, func(s *Sensor) {
		if got, err := s.Read(context.Background()); len(got) != 0 || !errors.Is(err, n.err) {
			t.Errorf("%v, %v", got, err)
		}
		n.mu.Lock()
		n.err = nil
		n.mu.Unlock()
		got, err := s.Read(context.Background())
		if err != nil || got[signal.MemoryAvailable].Available != gib || got[signal.NodeFsAvailable].Available != gib {
			t.Errorf("%v, %v", got, err)
		}
		if got := wakes(s, time.Minute); got == 0 {
			t.Error("never woken after errors")
		}
	})
}

// TestSlowDisks: who decides about memory does not wait for a disk that takes seconds, and hears when it has answered.
func TestSlowDisks(t *testing.T) {
	n := &node{memory: constant(gib), disk: constant(gib)}
	n.delay = 3 * time.Second
	run(t, n, nil, nil, func(s *Sensor) {
		time.Sleep(time.Minute)
		for range 3 {
			before := time.Now()
			got, err := s.Read(context.Background())
			if _, ok := got[signal.NodeFsAvailable]; err != nil || ok || got[signal.MemoryAvailable].Available != gib {
				t.Errorf("%v, %v", got, err)
			}
			if took := time.Since(before); took > diskPatience {
				t.Errorf("took %v", took)
			}
		}
		for {
			<-s.Wake()
			got, err := s.Read(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if got[signal.NodeFsAvailable].Available == gib {
				break
			}
		}
		time.Sleep(time.Minute) // what was asked for last is answered
	})
}
