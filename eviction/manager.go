// Package eviction evicts pods for the sake of the node: when it runs short of memory, disk or process IDs, in
// kubelet's order, and those that have more on its disk than their limits allow. A [Manager] decides all of it. What
// one pod may have of memory is limited by the kernel.
package eviction

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/eviction/limit"
	"github.com/berth-node/berth/eviction/rank"
	"github.com/berth-node/berth/eviction/signal"
	"github.com/berth-node/berth/eviction/threshold"
)

// Sensor tells what the node has left.
type Sensor interface {
	// Read reads all signals now. What cannot be read is missing from the answer, and named in the error.
	Read(ctx context.Context) (signal.Readings, error)
	// Quick reads those signals now for which nobody waits: memory and process IDs. It can be called at any time.
	Quick() (signal.Readings, error)
	// Arm says below which values somebody wants to be woken, the most pressing last; it may be called again and again.
	Arm(limits map[signal.Signal][]int64)
	// Wake receives when a signal may have crossed a limit, or the time to the next look has passed.
	Wake() <-chan struct{}
}

// ErrNotGone is of a pod that was told to end and has something left when it is waited for no more.
var ErrNotGone = errors.New("the pod is not gone yet")

// Node has the pods that may be evicted, and evicts them.
type Node interface {
	// Ranked are the pods that run, with what each has of the resource behind the signal.
	Ranked(ctx context.Context, of signal.Signal) ([]rank.Pod, error)
	// Evict ends a pod and returns when nothing of it runs any more and what it had is given back, or ctx ends: with
	// [ErrNotGone] where the pod was told to end. Grace 0 is at once, with SIGKILL. It can be repeated.
	Evict(ctx context.Context, uid types.UID, order Order) error
	// Reclaim frees what no pod needs (dead containers, unused images) where that helps the signal, until so much is
	// freed as is needed; it returns how much was. Both are in what the signal counts.
	Reclaim(ctx context.Context, of signal.Signal, need int64) (int64, error)
	// Conditions tells which conditions hold (MemoryPressure, DiskPressure, PIDPressure), with their reasons, whenever
	// that changes.
	Conditions(now Conditions)
}

// Limits tell of pods that have more on the disk than they may: a [limit.Meter].
type Limits interface {
	// Over receives who is above a limit, as long as somebody is, and nobody once nobody is any more.
	Over() <-chan limit.Look
}

// Order is how and why a pod is evicted.
type Order struct {
	Signal       signal.Signal
	GraceSeconds int64
	Message      string
	Resource     corev1.ResourceName
	// Annotations are those of kubelet's event: starved_resource, offending_containers, offending_containers_usage.
	Annotations map[string]string
}

// Condition is what the node says of itself.
type Condition struct {
	Type            corev1.NodeConditionType
	Status          bool
	Reason, Message string
	Since           time.Time
	Last            time.Time // when it was last seen to be met; zero: never
}

// Conditions are those that eviction has a say in, each once.
type Conditions []Condition

// Config is what a [Manager] works with. Policy, Sensor, Node and Log are required.
type Config struct {
	Policy threshold.Policy
	Sensor Sensor
	Node   Node
	// Limits tell whose end is due for what it has itself, whatever the node has left. nil: nobody's is.
	Limits Limits
	// Exhaustion is how long it takes until there is no more than limit, at the pace of the readings; false when nobody
	// knows. nil: soft thresholds wait for their grace period whatever comes.
	Exhaustion func(history []signal.Reading, limit int64) (time.Duration, bool)
	// Confirm is how long a threshold of memory has to be met until it is believed; 0: at once.
	Confirm time.Duration
	// Stall has a pod go when the node stands still, whatever is available. nil: it waits for the thresholds.
	Stall *Stall
	// Before are the conditions that held when somebody looked last, before a restart.
	Before Conditions
	// Seen hears of the conditions when one has changed, when one is met anew or not any more, and now and then while
	// one is, so that it can be [Config.Before] later; nil: nobody.
	Seen func(Conditions)
	// Began hears of each attempt to have more of what a signal tells of, before it; nil: nobody.
	Began func(of signal.Signal)
	// Decided hears of each decision when it has been carried out, one after the other; nil: nobody.
	Decided func(Decision)
	Log     *slog.Logger
}

// Manager evicts pods when the node runs short of something. [Manager.Run] is one goroutine that has all of its state;
// what takes time flies beside it, so that memory can be seen to for as long as a disk is.
type Manager struct {
	cfg    Config
	log    *slog.Logger
	armed  map[signal.Signal][]int64
	unread string // what was said of signals that cannot be read

	judge      *judge
	standstill standstill
	pressure   pressure
	flights    map[flightOf]*flight
	landings   chan landing
	landed     []landing // of which it is not known yet what is available after them
	settling   settling
	tried      tried
	limits     <-chan limit.Look
	excesses   excesses
}

// Bounds of the calls of others.
const (
	readPatience    = 5 * time.Second
	rankPatience    = 5 * time.Second
	countPatience   = 30 * time.Second // files are counted one by one
	reclaimPatience = 2 * time.Minute
	// countLeast and reclaimLeast are what is left of these where nothing is left of the disk by then.
	countLeast, reclaimLeast = 3 * time.Second, 5 * time.Second
	// evictPatience is how long a pod may take to end that is killed: the kernel gives back some gigabytes a second.
	evictPatience = 10 * time.Second
)

// NewManager returns a Manager, which does nothing before [Manager.Run].
func NewManager(c Config) *Manager {
	m := &Manager{
		cfg: c, log: c.Log, judge: newJudge(&c), standstill: standstill{stall: c.Stall},
		pressure: newPressure(c.Policy.Transition, c.Before, time.Now()), flights: map[flightOf]*flight{},
		landings: make(chan landing, 16), settling: settling{}, tried: newTried(),
		excesses: newExcesses(),
	}
	if c.Limits != nil {
		m.limits = c.Limits.Over()
	}
	return m
}

// Run looks whenever the sensor wakes it, until ctx ends. It returns when nothing that it began is under way any more;
// what a pod was told stays true.
func (m *Manager) Run(ctx context.Context) {
	defer m.land()
	m.cfg.Node.Conditions(m.pressure.all())
	for {
		var later <-chan time.Time
		if at := m.look(ctx); !at.IsZero() {
			later = time.After(time.Until(at))
		}
		select {
		case <-ctx.Done():
			return
		case <-m.cfg.Sensor.Wake():
		case l := <-m.landings:
			m.arrive(l)
		case l := <-m.limits:
			m.excesses.take(l)
		case <-later:
		}
	}
}

// land waits for what was begun, of which each has a deadline, and ctx has ended.
func (m *Manager) land() {
	for len(m.flights) > 0 {
		m.arrive(<-m.landings)
	}
	// Of a pod that is ending still there is nothing to tell: it ends without somebody who waits.
	m.landed = slices.DeleteFunc(m.landed, func(l landing) bool { return errors.Is(l.err, context.Canceled) })
	m.finish(nil, time.Now(), &earliest{})
}

// look reads, decides and begins what is to be done. It returns when to look again if nothing wakes it; zero: never.
func (m *Manager) look(ctx context.Context) time.Time {
	readings := m.read(ctx)
	now := time.Now()
	next := earliest{now: now}
	m.judge.remember(readings)
	m.finish(readings, now, &next)
	due, eased := m.judge.compare(readings, now, &next)
	for _, of := range eased {
		m.tried.eased(of)
		m.settling.eased(of.Resource())
	}
	m.arm(readings)
	changed := m.pressure.update(m.judge.conditions(now), now, &next)
	if changed {
		m.cfg.Node.Conditions(m.pressure.all())
	}
	if m.cfg.Seen != nil && m.pressure.worthKeeping() {
		m.cfg.Seen(m.pressure.all())
	}
	if s := m.standstill.look(readings, now, &next); s != nil {
		due = append(due, *s)
	}
	// Who is above a limit of its own goes in any case, and before anybody is chosen.
	m.act(ctx, append(m.excesses.dues(now, &m.tried, &next), due...), now, &next)
	return next.at
}

// read reads the signals. What cannot be read is told when it changes.
func (m *Manager) read(ctx context.Context) signal.Readings {
	ctx, cancel := context.WithTimeout(ctx, readPatience)
	defer cancel()
	readings, err := m.cfg.Sensor.Read(ctx)
	text := ""
	if err != nil && ctx.Err() == nil {
		text = err.Error()
	}
	if text != "" && text != m.unread {
		m.log.Warn("not every signal of eviction can be read", "error", err)
	}
	m.unread = text
	return readings
}

// arm tells the sensor the amounts that matter, when they have changed.
func (m *Manager) arm(readings signal.Readings) {
	limits := m.judge.limits(readings, m.armed)
	if !maps.EqualFunc(limits, m.armed, slices.Equal[[]int64]) {
		m.armed = limits
		m.cfg.Sensor.Arm(limits)
	}
}

// earliest is the first of several moments to come.
type earliest struct{ now, at time.Time }

func (e *earliest) add(at time.Time) {
	if at.After(e.now) && (e.at.IsZero() || at.Before(e.at)) {
		e.at = at
	}
}
