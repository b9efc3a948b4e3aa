package eviction

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/eviction/rank"
	"github.com/berth-node/berth/eviction/signal"
	"github.com/berth-node/berth/eviction/threshold"
)

// inhabitant is a pod of a world.
type inhabitant struct {
	rank.Pod
	of     corev1.ResourceName
	grows  int64         // a second
	since  time.Time     // from when on
	dies   time.Duration // how long it takes to die that is killed
	stays  bool          // it cannot be ended
	lags   bool          // it is told of still when it has ended
	hangs  bool          // ending it does not come back when it is called off
	lasts  time.Duration // how long what it had is not free after its end
	fades  time.Duration // how long it takes to give back what it has, little by little
	told   time.Time     // to end
	killed bool
	end    time.Time
}

func (p *inhabitant) used() int64 {
	if p.killed && time.Since(p.end) >= p.lasts {
		return 0
	}
	if p.fades > 0 && !p.told.IsZero() {
		return max(0, p.Usage-int64(float64(p.Usage)*time.Since(p.told).Seconds()/p.fades.Seconds()))
	}
	return p.Usage + int64(float64(p.grows)*time.Since(p.since).Seconds())
}

// world is a node with 1000 of everything, of which pods have what they have, and the sensor that looks at it. Its
// clock is that of the bubble that it is in.
type world struct {
	mu         sync.Mutex
	pods       []*inhabitant
	others     map[signal.Signal]int64 // what is not the pods'
	unreadable map[signal.Signal]bool
	garbage    int64         // of disks, that Reclaim removes
	later      int64         // is written beside the pods meanwhile
	slow       time.Duration // how long that takes
	asking     time.Duration // how long it takes to say who has what
	allowed    time.Duration // how long it may have taken, when somebody asked last
	wake       chan struct{}
	quiet      bool // the sensor wakes nobody by itself
	told       []string
	conditions []Conditions
	decided    []Decision
	armed      map[signal.Signal][]int64
	start      time.Time
}

func newWorld(pods ...*inhabitant) *world {
	w := &world{
		pods: pods, others: map[signal.Signal]int64{}, unreadable: map[signal.Signal]bool{}, wake: make(chan struct{}, 1), start: time.Now(),
	}
	for _, p := range pods {
		p.since = w.start
	}
	return w
}

func (w *world) tell(format string, args ...any) {
	w.told = append(w.told, fmt.Sprintf("%v %s", time.Since(w.start).Round(10*time.Millisecond), fmt.Sprintf(format, args...)))
}

func (w *world) story() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.told, "\n")
}

// changes are the conditions as they were told.
func (w *world) changes() []Conditions {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.conditions)
}

// set changes the world at once, and wakes who is to know.
func (w *world) set(do func()) {
	w.mu.Lock()
	do()
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
	synctest.Wait()
}

func (w *world) Wake() <-chan struct{} { return w.wake }

func (w *world) Arm(limits map[signal.Signal][]int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.armed = maps.Clone(limits)
}

// Quick has all signals: nobody waits in this world.
func (w *world) Quick() (signal.Readings, error) { return w.Read(context.Background()) }

func (w *world) Read(context.Context) (signal.Readings, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out, err := signal.Readings{}, error(nil)
	for _, of := range signal.All() {
		if w.unreadable[of] {
			err = fmt.Errorf("read %s: it is not there", of)
			continue
		}
		left := 1000 - w.others[of]
		for _, p := range w.pods {
			if p.of == of.Resource() {
				left -= p.used()
			}
		}
		if of.Condition() == corev1.NodeDiskPressure {
			left -= w.garbage
		}
		out[of] = signal.Reading{Available: left, Capacity: 1000, Time: time.Now()}
	}
	return out, err
}

// Ranked has all pods, of which those have nothing of the resource that are of another.
func (w *world) Ranked(ctx context.Context, of signal.Signal) ([]rank.Pod, error) {
	deadline, _ := ctx.Deadline()
	allowed := time.Until(deadline)
	time.Sleep(w.asking)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.allowed = allowed
	var out []rank.Pod
	for _, p := range w.pods {
		if p.killed && !p.lags {
			continue
		}
		one := p.Pod
		one.Usage = 0
		if p.of == of.Resource() {
			one.Usage = p.used()
		}
		out = append(out, one)
	}
	return out, nil
}

func (w *world) Evict(ctx context.Context, uid types.UID, o Order) error {
	w.mu.Lock()
	at := slices.IndexFunc(w.pods, func(p *inhabitant) bool { return p.UID == uid })
	if at < 0 {
		w.mu.Unlock()
		return errors.New("no such pod")
	}
	p := w.pods[at]
	w.tell("evict %s with %d for %s", p.Name, o.GraceSeconds, o.Signal)
	if p.Ending = true; p.told.IsZero() {
		p.told = time.Now()
	}
	wait := p.dies
	if p.fades > 0 {
		wait = time.Until(p.told.Add(p.fades))
	}
	w.mu.Unlock()
	if o.GraceSeconds > 0 {
		wait = min(time.Duration(o.GraceSeconds)*time.Second, time.Duration(p.Grace)*time.Second)
	}
	if p.stays {
		wait = time.Hour
	}
	select {
	case <-time.After(wait):
	case <-ctx.Done():
		time.Sleep(100 * time.Millisecond)
		if p.hangs {
			time.Sleep(time.Hour)
		}
		return fmt.Errorf("%w: %w", ErrNotGone, ctx.Err())
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p.killed, p.end = true, time.Now()
	w.tell("%s has ended", p.Name)
	return nil
}

func (w *world) Reclaim(ctx context.Context, of signal.Signal, need int64) (int64, error) {
	w.mu.Lock()
	w.tell("reclaim for %s", of)
	slow := w.slow
	w.mu.Unlock()
	select {
	case <-time.After(slow):
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	freed := min(w.garbage, need)
	w.garbage -= freed
	w.others[of], w.later = w.others[of]+w.later, 0
	return freed, nil
}

func (w *world) Conditions(now Conditions) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conditions = append(w.conditions, now)
	for _, c := range now {
		if c.Status {
			w.tell("%s", c.Reason)
		}
	}
}

// decisions are those that were carried out, the oldest first.
func (w *world) decisions() []Decision {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.decided)
}

// evicted counts the pods that went for a signal.
func (w *world) evicted(of signal.Signal) int {
	n := 0
	for _, d := range w.decisions() {
		if d.Signal == of && d.Pod != (Name{}) && d.Result.Error == "" {
			n++
		}
	}
	return n
}

// live runs a manager in a world for as long as a test's body takes. The sensor wakes it every 10 ms, unless the world
// is quiet.
func live(t *testing.T, w *world, c Config, body func(m *Manager)) {
	t.Helper()
	c.Sensor, c.Node, c.Log = w, w, slog.New(slog.DiscardHandler)
	hears := c.Decided
	c.Decided = func(d Decision) {
		w.mu.Lock()
		w.decided = append(w.decided, d)
		w.mu.Unlock()
		if hears != nil {
			hears(d)
		}
	}
	m := NewManager(c)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { m.Run(ctx) })
	if !w.quiet {
		wg.Go(func() {
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
					select {
					case w.wake <- struct{}{}:
					default:
					}
				}
			}
		})
	}
	synctest.Wait()
	body(m)
	cancel()
	wg.Wait()
}

// memory is a pod that has so much memory.
func memory(name string, used, request int64) *inhabitant {
	return having(corev1.ResourceMemory, name, used, request)
}

func having(of corev1.ResourceName, name string, used, request int64) *inhabitant {
	return &inhabitant{of: of, Pod: rank.Pod{
		UID: types.UID(name), Namespace: "default", Name: name, Known: true, Usage: used, Request: request, Grace: 30,
	}}
}

// hard and soft are thresholds of memory, of which a node has 1000.
func hard(of signal.Signal, at, more int64) threshold.Threshold {
	return threshold.Threshold{Signal: of, Value: threshold.Value{Quantity: at}, MinReclaim: threshold.Value{Quantity: more}}
}

func soft(of signal.Signal, at int64, grace time.Duration) threshold.Threshold {
	return threshold.Threshold{Signal: of, Value: threshold.Value{Quantity: at}, Soft: true, Grace: grace}
}

func policy(of ...threshold.Threshold) threshold.Policy {
	slices.SortStableFunc(of, func(a, b threshold.Threshold) int {
		return cmp.Compare(slices.Index(signal.All(), a.Signal), slices.Index(signal.All(), b.Signal))
	})
	return threshold.Policy{Thresholds: of, Transition: time.Minute, MaxPodGrace: 20}
}

// said compares what happened in a world with what should have.
func said(t *testing.T, w *world, want ...string) {
	t.Helper()
	if got := w.story(); got != strings.Join(want, "\n") {
		t.Errorf("what happened:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
	}
}
