package pod

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/eviction/collect"
)

// dead decides which dead containers of all pods are kept for their logs. Workers tell it what they see, and remove
// what is theirs: the container that a pod's state is told from is none of these.
type dead struct {
	policy collect.Policy

	mu      sync.Mutex
	of      map[types.UID][]collect.Container
	ordered map[string]bool // IDs that somebody wants removed by hand
	total   int
	changed chan struct{} // closed when something has gone
}

func newDead(p collect.Policy) *dead {
	return &dead{
		policy: p, of: map[types.UID][]collect.Container{}, ordered: map[string]bool{}, changed: make(chan struct{}),
	}
}

// see takes note of the dead containers of a pod. It says whether others may have to go for them.
func (d *dead) see(pod types.UID, list []collect.Container) (others bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.put(pod, list)
}

func (d *dead) put(pod types.UID, list []collect.Container) (others bool) {
	there := map[string]bool{}
	for _, c := range list {
		there[c.ID] = true
	}
	for _, c := range d.of[pod] {
		if !there[c.ID] {
			delete(d.ordered, c.ID)
		}
	}
	more := len(list) - len(d.of[pod])
	d.total += more
	if d.of[pod] = list; len(list) == 0 {
		delete(d.of, pod)
	}
	if more < 0 {
		close(d.changed)
		d.changed = make(chan struct{})
	}
	return more > 0 && d.policy.MaxTotal >= 0 && d.total > d.policy.MaxTotal
}

// forget is see of a pod that is gone.
func (d *dead) forget(pod types.UID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.put(pod, nil)
	close(d.changed) // whoever waits for the pod itself
	d.changed = make(chan struct{})
}

// unneeded are those of a pod that go now, and when there may be more of them though nothing happens; zero: never.
func (d *dead) unneeded(pod types.UID, now time.Time) (ids map[string]bool, next time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := d.of[pod]
	if len(list) == 0 {
		return nil, next
	}
	all := list
	if d.policy.MaxTotal >= 0 {
		all = d.all()
	}
	ids = map[string]bool{}
	for _, c := range d.policy.Containers(all, func(types.UID) bool { return true }, now) {
		ids[c.ID] = c.Pod == pod
	}
	for _, c := range list {
		ids[c.ID] = ids[c.ID] || d.ordered[c.ID]
	}
	return ids, d.policy.Next(all, now)
}

func (d *dead) all() (all []collect.Container) {
	for _, l := range d.of {
		all = append(all, l...)
	}
	return all
}

// list are those of all pods.
func (d *dead) list() []collect.Container {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.all()
}

// order has workers remove some that they have, once they are told to look.
func (d *dead) order(list []collect.Container) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range list {
		for _, there := range d.of[c.Pod] {
			if there.ID == c.ID {
				d.ordered[c.ID] = true
			}
		}
	}
}

// await waits until gone says that nothing is awaited any more, or ctx ends. It asks again whenever a container or a
// pod has gone.
func (d *dead) await(ctx context.Context, gone func() bool) {
	for {
		d.mu.Lock()
		changed := d.changed // before gone looks, so that no change is missed
		d.mu.Unlock()
		if gone() {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}
