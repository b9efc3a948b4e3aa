// Package dra gives containers the devices of ResourceClaims: it is what kubelet's manager of dynamic resources is, over the node's API
// of drivers (k8s.io/kubelet/pkg/apis/dra, v1 and v1beta1).
//
// Which devices a claim has is in its allocation. A driver is asked to prepare a claim before the first pod that has it starts, and to
// unprepare it after the last one has ended. The only state that lasts is in one file, written before anybody acts on it: which pods
// have which claims, which drivers were asked, and what they have answered. So no claim stays prepared for want of an agent that knew
// of it, and a container can be started again by the next agent, whether or not the driver is there then.
package dra

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Config is what a [Manager] works with. File is required.
type Config struct {
	File   string            // of the claims that pods have
	Boot   string            // what was prepared under another name of the machine's run is to be prepared again: CDI files are in memory
	Node   string            // its name, for the nodeSelector of allocations
	Labels map[string]string // of the node
	Log    *slog.Logger
}

// claim is a record with the turn of those who ask drivers about it. The record is never changed, but replaced.
type claim struct {
	record
	turn chan struct{}
}

// Manager has the claims of all pods. A nil Manager has none. Its methods can be called at any time.
type Manager struct {
	cfg     Config
	log     *slog.Logger
	changed chan struct{}
	freed   chan struct{}
	orphans chan struct{} // there may be claims that no pod has any more
	metrics *metrics
	ctx     context.Context // of what is heard of drivers
	stop    context.CancelFunc
	wait    sync.WaitGroup

	mu      sync.Mutex
	claims  map[types.UID]*claim
	plugins map[string][]*plugin // by driver, the one that has registered last at the end
	health  map[string]map[deviceKey]health
}

// New takes over what pods had before. No driver is asked before [Manager.Run].
func New(c Config) (*Manager, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	m := &Manager{
		cfg: c, log: c.Log, changed: make(chan struct{}, 1), freed: make(chan struct{}, 1), orphans: make(chan struct{}, 1),
		claims: map[types.UID]*claim{}, plugins: map[string][]*plugin{}, health: map[string]map[deviceKey]health{},
	}
	m.metrics = newMetrics(m)
	m.ctx, m.stop = context.WithCancel(context.Background())
	return m, m.load()
}

// Changed tells that devices are otherwise than before. It is nil for a nil Manager.
func (m *Manager) Changed() <-chan struct{} {
	if m == nil {
		return nil
	}
	return m.changed
}

// Freed tells that a driver has come, or that a claim is nobody's any more: who has failed for want of that may try again. It is nil for
// a nil Manager.
func (m *Manager) Freed() <-chan struct{} {
	if m == nil {
		return nil
	}
	return m.freed
}

// Left are the claims that pods have, or that drivers have not unprepared.
func (m *Manager) Left() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for _, c := range m.claims {
		out = append(out, c.String())
	}
	slices.Sort(out)
	return out
}

func ring(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// How soon the claims that no pod has are tried again to be unprepared.
const (
	orphanInitial = time.Second
	orphanMax     = 2 * time.Minute
)

// Run unprepares the claims of pods that are gone, until ctx ends and nothing is heard of any driver any more. It runs once.
func (m *Manager) Run(ctx context.Context) error {
	defer m.wait.Wait()
	defer m.stop()
	delay, said := orphanInitial, ""
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.orphans:
			delay = orphanInitial
		case <-timer.C:
		}
		err := m.unprepareOrphans(ctx)
		if err == nil || ctx.Err() != nil {
			said = ""
			continue
		}
		if text := err.Error(); text != said {
			said = text
			m.log.Warn("claims of pods that are gone are still prepared", "error", err)
		}
		timer.Reset(delay)
		delay = min(2*delay, orphanMax)
	}
}

// Synced takes the claims of pods that are not there any more from them.
func (m *Manager) Synced(here func(types.UID) bool) error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	next := maps.Clone(m.claims)
	for uid, c := range next {
		r := c.record
		r.Pods = slices.DeleteFunc(slices.Clone(r.Pods), func(p user) bool { return !here(p.UID) })
		if len(r.Pods) != len(c.Pods) {
			next[uid] = &claim{r, c.turn}
		}
	}
	ring(m.orphans)
	return m.commit(next)
}

func (m *Manager) unprepareOrphans(ctx context.Context) error {
	m.mu.Lock()
	var all []types.UID
	for uid, c := range m.claims {
		if len(c.Pods) == 0 {
			all = append(all, uid)
		}
	}
	m.mu.Unlock()
	slices.Sort(all)
	var first error
	for _, uid := range all {
		if err := m.release(ctx, uid, ""); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// Has says whether a pod has claims.
func (m *Manager) Has(pod types.UID) bool {
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.usedBy(pod)) > 0
}

// usedBy are the claims of a pod, in order.
func (m *Manager) usedBy(pod types.UID) []types.UID {
	var out []types.UID
	for uid, c := range m.claims {
		if c.user(pod) >= 0 {
			out = append(out, uid)
		}
	}
	slices.Sort(out)
	return out
}

// enter waits for the turn to ask drivers about a claim, and returns what ends it. There is none when the claim is gone.
func (m *Manager) enter(ctx context.Context, uid types.UID) (leave func(), err error) {
	m.mu.Lock()
	c := m.claims[uid]
	m.mu.Unlock()
	if c == nil {
		return func() {}, nil
	}
	select {
	case c.turn <- struct{}{}:
		return func() { <-c.turn }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// set replaces a record by what fn makes of it; false when the claim is gone.
func (m *Manager) set(uid types.UID, fn func(*record)) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.claims[uid]
	if c == nil {
		return false, nil
	}
	r := c.clone()
	fn(&r)
	next := maps.Clone(m.claims)
	if next[uid] = (&claim{r, c.turn}); len(r.Pods) == 0 && len(r.Drivers) == 0 {
		delete(next, uid)
	}
	return true, m.commit(next)
}

// get is a record as it is now.
func (m *Manager) get(uid types.UID) (record, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.claims[uid]
	if c == nil {
		return record{}, false
	}
	return c.record, true
}

// pluginOf is the driver's plugin that has registered last.
func (m *Manager) pluginOf(driver string) (*plugin, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.plugins[driver]
	if len(all) == 0 {
		return nil, fmt.Errorf("DRA driver %s is not registered: no plugin of that name is in the plugin registration directory", driver)
	}
	return all[len(all)-1], nil
}

// entries are what a container names of claims.
func entries(pod *corev1.Pod, container string) []corev1.ResourceClaim {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == container {
				return list[i].Resources.Claims
			}
		}
	}
	return nil
}
