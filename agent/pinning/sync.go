package pinning

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"
)

// syncRetry is how long it takes until the runtime is asked again that has refused to move a container.
const syncRetry = 10 * time.Second

// Run moves the running containers when what they may use has changed, until ctx ends. Every so often it puts all of
// them where they should be, whatever was known of them: somebody may have changed it.
func (m *Manager) Run(ctx context.Context, every time.Duration) {
	if m == nil {
		return
	}
	again := time.NewTicker(every)
	defer again.Stop()
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.changed:
		case <-retry:
		case <-again.C:
			m.mover.doubt()
		}
		retry = nil
		if err := m.Sync(ctx); err != nil && ctx.Err() == nil {
			m.log.Warn("containers are not on their CPUs", "error", err)
			retry = time.After(syncRetry)
		}
	}
}

// Started tells of a container that runs where pin says. What has changed since pin was asked for is made up for;
// without a pin nothing is known of where it runs.
func (m *Manager) Started(id string, uid types.UID, container string, pin *Pin) {
	if m == nil || !m.moves() {
		return
	}
	now := m.Pin(uid, container)
	if pin == nil || *pin != now {
		m.ring()
		return
	}
	m.mover.runs(id, now)
}

// moves says whether there is anything that could be moved.
func (m *Manager) moves() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cfg.StaticCPUs || m.cfg.StaticMemory || len(m.book.former) > 0
}

// Sync puts the running containers of all pods where they should be. When it has returned without an error nobody runs
// on CPUs that were given to another.
func (m *Manager) Sync(ctx context.Context) error {
	if m == nil || !m.moves() {
		return nil
	}
	return m.mover.sync(ctx, m.wantedFor, m.forget)
}

// wantedFor is where a container should run. What an agent before this one has pinned, and this one does not, goes back
// to all.
func (m *Manager) wantedFor(uid types.UID, container string) (Pin, quota) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pin(uid, container)
	if p.Exclusive {
		return p, quota{time: -1}
	}
	if len(m.book.former) > 0 && !m.cfg.StaticCPUs {
		p.CPUs = m.cfg.Machine.All().String()
	}
	f := m.book.former[uid]
	if f == nil {
		return p, quota{}
	}
	var q quota
	for i := range f.Containers {
		if f.Containers[i].Container != container {
			continue
		}
		if f.Containers[i].CPUs != "" {
			q = m.quotas[uid][container]
		}
		if p.Mems == "" && len(f.Containers[i].Memory) > 0 {
			p.Mems = cpuset.New(m.alloc.align.all.list()...).String()
		}
	}
	return p, q
}

// forget forgets what an agent before this one gave out, once everybody is where this one wants them.
func (m *Manager) forget() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.book.former) == 0 || !m.synced {
		return nil
	}
	if err := m.book.forget(); err != nil {
		return err
	}
	clear(m.quotas)
	return nil
}
