// Package limit tells which pods have more on the node's disk than their limits of ephemeral-storage and the size
// limits of their emptyDirs allow, and counts as seldom as it can. What comes of it, package eviction decides.
package limit

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/internal/patience"
)

// Pods are the pods of the node.
type Pods interface {
	// Here are all that have anything on the node, and have not been ended.
	Here() []*corev1.Pod
	// Came receives when there may be another one.
	Came() <-chan struct{}
}

// Shared is no container's name. What is counted under it is the pod's.
const Shared = ""

// Usage says what pods have on the disk, in bytes.
type Usage interface {
	// Volume is what an emptyDir of the pod takes; false when it cannot be counted.
	Volume(ctx context.Context, pod *corev1.Pod, name string) (bytes int64, ok bool)
	// Containers is what each of the pod's containers has written into its file system and its logs, by name, and what
	// they have written together, by the name [Shared]. layers are the directories of file systems that they have
	// written to.
	Containers(ctx context.Context, pod *corev1.Pod) (use map[string]int64, layers []string, err error)
}

// Source tells that disks come under pressure. A channel that is closed tells no more.
type Source interface {
	Events() <-chan struct{}
}

// Config is what a [Meter] works with. All but Sources is required.
type Config struct {
	Pods        Pods
	Usage       Usage
	Directories []string // pods write below these, whatever else they write to
	Sources     []Source
	Log         *slog.Logger
}

// Look is which pods are above a limit. Of a pod that is above several it has one.
type Look struct {
	Began time.Time // it is of the pods that were there then
	Over  []Excess  // in the order of UIDs
}

const (
	// slow is the longest time between two counts, that of kubelet.
	slow = 10 * time.Second
	// share is the part of the time that is spent on counting a pod at most: files are looked at one by one where the
	// file system does not count them, and there may be millions.
	share = 20
	// parallel is how many pods are counted at the same time.
	parallel = 4
	// first is how long a pod may be counted at first. If that was not enough it is twice as long next time, and so on.
	// longest is how long one count may take, and grace how long it may take to notice that it is over.
	first, longest, grace = 250 * time.Millisecond, time.Minute, time.Second
	// gather is how long a count is put off for pods that come together: each time all of them are gone through.
	gather = 100 * time.Millisecond
	// answers is how long file systems may take to say what is free of them: a local one takes microseconds.
	answers = time.Second
)

// slots are how many pods are counted at the same time whose counts may take longer than that: those that have many
// files do not hide those that have few, however many they are.
var slots = []struct {
	longer time.Duration
	atOnce int
}{{0, parallel}, {first, parallel / 2}, {16 * first, 1}}

// Meter tells which pods are above a limit. One goroutine has all of it; each count has one of its own, and until it
// has ended, what is known of its pod.
type Meter struct {
	cfg     Config
	over    chan Look
	poked   chan struct{}
	counts  chan counted
	busy    map[*held]bool
	pods    map[types.UID]*held
	without map[types.UID]*corev1.Pod // pods without a limit, as they were looked at
	told    bool                      // of somebody who is over
	calls   patience.Calls
	statfs  func(dir string, now *unix.Statfs_t) error
}

// NewMeter returns a Meter that counts nothing before [Meter.Run].
func NewMeter(c Config) *Meter {
	return &Meter{
		cfg: c, over: make(chan Look, 1), poked: make(chan struct{}, 1), counts: make(chan counted), busy: map[*held]bool{},
		pods: map[types.UID]*held{}, without: map[types.UID]*corev1.Pod{}, statfs: unix.Statfs,
	}
}

// Over receives the latest look as long as a pod is above a limit, and one more when none is any longer.
func (m *Meter) Over() <-chan Look { return m.over }

// Run counts until ctx ends. It waits for what it has begun, but not for a file system that does not answer.
func (m *Meter) Run(ctx context.Context) {
	var wait sync.WaitGroup
	defer wait.Wait()
	for _, s := range m.cfg.Sources {
		wait.Go(func() { m.hear(ctx, s) })
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	var gathered <-chan time.Time // nil: no pod has come
	for {
		select {
		case <-ctx.Done():
			for range m.busy {
				<-m.counts
			}
			return
		case <-m.cfg.Pods.Came():
			if gathered == nil {
				gathered = time.After(gather)
			}
			continue
		case <-gathered:
			gathered = nil
		case <-m.poked:
			m.hurry()
		case c := <-m.counts:
			m.take(c)
		case <-timer.C:
		}
		timer.Reset(m.begin(ctx))
	}
}

func (m *Meter) hear(ctx context.Context, s Source) {
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-s.Events():
			if !ok {
				return
			}
			select {
			case m.poked <- struct{}{}:
			default:
			}
		}
	}
}

// hurry has everybody looked at now: the kernel does not say who writes.
func (m *Meter) hurry() {
	now := time.Now()
	for _, h := range m.pods {
		if h.next.After(now) {
			h.next = later(now, h.rested)
		}
	}
}

// later is the later of two times.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// begin begins the counts that are due, and returns how long it is to the next.
func (m *Meter) begin(ctx context.Context) time.Duration {
	now := time.Now()
	m.follow(m.cfg.Pods.Here())
	m.tell(now)
	wait := slow
	var due []*held
	for _, h := range m.pods {
		switch {
		case m.busy[h]:
		case h.next.After(now):
			wait = min(wait, h.next.Sub(now))
		default:
			due = append(due, h)
		}
	}
	slices.SortFunc(due, func(a, b *held) int { return a.next.Compare(b.next) })
	for _, h := range due {
		if m.fits(h) {
			m.busy[h] = true
			go func() { m.counts <- h.count(ctx, m) }()
		}
	}
	return wait
}

// fits says whether a pod can be counted beside those that are.
func (m *Meter) fits(h *held) bool {
	for _, s := range slots {
		used := 0
		for other := range m.busy {
			if other.turn > s.longer {
				used++
			}
		}
		if h.turn > s.longer && used >= s.atOnce {
			return false
		}
	}
	return true
}

// follow knows of the pods that are there, and forgets all others with all that was known of them.
func (m *Meter) follow(here []*corev1.Pod) {
	there, without := map[types.UID]bool{}, make(map[types.UID]*corev1.Pod, len(here))
	for _, pod := range here {
		if m.without[pod.UID] == pod || !limited(pod) {
			without[pod.UID] = pod
			continue
		}
		there[pod.UID] = true
		if h := m.pods[pod.UID]; h == nil {
			m.pods[pod.UID] = newHeld(pod, m.cfg.Directories)
		} else if !m.busy[h] {
			h.pod = pod // it may have been changed
		}
	}
	m.without = without
	for uid := range m.pods {
		if !there[uid] {
			delete(m.pods, uid)
		}
	}
}

// free is what is free of the file system of a directory.
func (m *Meter) free(ctx context.Context, dir string) (unix.Statfs_t, error) {
	ctx, cancel := context.WithTimeout(ctx, answers)
	defer cancel()
	return patience.Ask(ctx, &m.calls, dir, 0, func() (now unix.Statfs_t, err error) {
		err = m.statfs(dir, &now)
		return now, err
	})
}

// take takes note of a count.
func (m *Meter) take(c counted) {
	delete(m.busy, c.of)
	if m.pods[c.of.pod.UID] == c.of {
		c.of.take(c, m.cfg.Log)
	}
}

// tell tells who is over, as of the last count of each. Who has not read the look before gets this one instead.
func (m *Meter) tell(began time.Time) {
	look := Look{Began: began}
	for _, h := range m.pods {
		if h.excess != nil {
			look.Over = append(look.Over, *h.excess)
		}
	}
	if len(look.Over) == 0 && !m.told {
		return
	}
	m.told = len(look.Over) > 0
	slices.SortFunc(look.Over, byUID)
	select {
	case <-m.over:
	default:
	}
	m.over <- look
}
