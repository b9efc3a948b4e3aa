package owned

import (
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"
)

// between is how far apart statuses of one object are written while its pods change one after the other. A rollout goes
// on by what they say, so that it is short; a hundred pods that become ready within a second are ten writes and not a
// hundred, each of which who watches would hear of.
const between = 100 * time.Millisecond

// A look at an object of many pods takes its time, and each of its pods that changes leads to one. It has a rest after
// each, of so long for a pod, so that thousands that go one after the other are some looks and not thousands.
const (
	manyPods   = 200
	restPerPod = 100 * time.Microsecond
)

// Pace keeps statuses that are of the moment apart, or looks.
type Pace struct {
	mu   sync.Mutex
	last map[cache.ObjectName]time.Time
}

// Left is how long the next status of an object waits; zero: it is written now, which counts as done.
func (p *Pace) Left(key cache.ObjectName, now time.Time) time.Duration {
	return p.left(key, now, between)
}

// Rest is how long the next look at an object of so many pods waits; zero: it is looked at now.
func (p *Pace) Rest(key cache.ObjectName, now time.Time, pods int) time.Duration {
	if pods < manyPods {
		return 0
	}
	return p.left(key, now, time.Duration(pods)*restPerPod)
}

func (p *Pace) left(key cache.ObjectName, now time.Time, apart time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if left := p.last[key].Add(apart).Sub(now); left > 0 && left <= apart {
		return left
	}
	p.wrote(key, now)
	return 0
}

// Wrote remembers a status that did not wait.
func (p *Pace) Wrote(key cache.ObjectName, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wrote(key, now)
}

func (p *Pace) wrote(key cache.ObjectName, now time.Time) {
	if p.last == nil {
		p.last = map[cache.ObjectName]time.Time{}
	}
	p.last[key] = now
}

// Forget is called when an object is gone.
func (p *Pace) Forget(key cache.ObjectName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.last, key)
}

// Soonest is the least of some times after which to look again; zero is never.
func Soonest(all ...time.Duration) time.Duration {
	var least time.Duration
	for _, d := range all {
		if d > 0 && (least == 0 || d < least) {
			least = d
		}
	}
	return least
}
