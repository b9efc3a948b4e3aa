package image

import (
	"context"
	"sync"
	"time"

	"github.com/berth-node/berth/internal/keylock"
)

// reportEvery limits how often a layer reports, so that progress costs nothing.
const reportEvery = 100 * time.Millisecond

// meter counts the bytes of one layer and reports them.
type meter struct {
	tell func(Progress)

	mu   sync.Mutex
	last time.Time
	p    Progress
}

func newMeter(tell func(Progress), ref, layer string, total int64) *meter {
	return &meter{tell: tell, p: Progress{Ref: ref, Layer: layer, Phase: Downloading, Total: total}}
}

// add counts n more bytes that arrived.
func (m *meter) add(n int) {
	m.mu.Lock()
	m.p.Done += int64(n)
	if m.p.Total > 0 && m.p.Done >= m.p.Total {
		m.p.Phase = Unpacking
	}
	now := time.Now()
	if now.Sub(m.last) < reportEvery {
		m.mu.Unlock()
		return
	}
	m.last = now
	p := m.p
	m.mu.Unlock()
	m.tell(p)
}

// restart counts from zero again.
func (m *meter) restart() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.p.Done, m.p.Phase = 0, Downloading
}

// done reports that the layer is here.
func (m *meter) done() {
	m.mu.Lock()
	m.p.Phase, m.p.Done = Done, max(m.p.Total, m.p.Done)
	p := m.p
	m.mu.Unlock()
	m.tell(p)
}

// slots limit how many layers are fetched at a time: in all, and from one registry.
type slots struct {
	all  chan struct{}
	each keylock.Locks[string] // by registry
}

func newSlots(all, each int) *slots {
	return &slots{all: make(chan struct{}, all), each: keylock.Locks[string]{Places: each}}
}

// take waits for a place at the registry, then for one at all: who waits for a busy registry does not hold up others.
func (s *slots) take(ctx context.Context, registry string) (release func(), err error) {
	leave, err := s.each.Lock(ctx, registry)
	if err != nil {
		return nil, err
	}
	select {
	case s.all <- struct{}{}:
		return func() { <-s.all; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}
