package metrics

import (
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	// minWindow is the shortest time that usage of processors is told of: it is made of counters that tick.
	minWindow = time.Second
	// most is more than any machine has, of bytes and of nanoseconds a second.
	most = 1 << 60
)

// usage is what something uses, and over which time that was measured.
type usage struct {
	at     time.Time
	window time.Duration
	used   corev1.ResourceList
}

// between is what was used between two samples. Where the earlier one is of another start, or there is none, it is what
// was used since the start, if that is known.
func between(before, after sample, has bool) (usage, bool) {
	since, cpu := before.at, after.cpu-before.cpu
	if !has || after.began.After(before.at) || cpu < 0 {
		if after.began.IsZero() {
			return usage{}, false
		}
		since, cpu = after.began, after.cpu
	}
	window := after.at.Sub(since)
	if window < minWindow {
		return usage{}, false
	}
	nanos := cpu / window.Seconds() * float64(time.Second)
	if !sane(nanos) || !sane(after.memory) {
		return usage{}, false
	}
	return usage{at: after.at, window: window, used: corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewScaledQuantity(int64(nanos), resource.Nano),
		corev1.ResourceMemory: *resource.NewQuantity(int64(after.memory), resource.BinarySI),
	}}, true
}

// sane says whether it may be true: what nodes say is not always.
func sane(v float64) bool { return !math.IsNaN(v) && v >= 0 && v < most }

// pair is the two latest scrapes of a node.
type pair struct{ before, after *scrape }

func (p pair) node() (usage, bool) { return between(p.before.node, p.after.node, true) }

// pods are the containers of each pod that the node told of, by name. A pod of which one container is not known yet is
// not there: half of it would be taken for the whole.
func (p pair) pods() map[podName]map[string]usage {
	all := map[podName]map[string]usage{}
	partly := map[podName]bool{}
	for key, after := range p.after.containers {
		name := podName{key.namespace, key.pod}
		if after.at.IsZero() {
			continue // it says when it was started, and does not run any more
		}
		before, has := p.before.containers[key]
		u, ok := between(before, after, has && !before.at.IsZero())
		if !ok {
			partly[name] = true
			continue
		}
		if all[name] == nil {
			all[name] = map[string]usage{}
		}
		all[name][key.name] = u
	}
	for name := range partly {
		delete(all, name)
	}
	return all
}

type podName struct{ namespace, name string }
