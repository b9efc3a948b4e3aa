// Package dra gives containers the devices of ResourceClaims: it is what kubelet's manager of dynamic resources is,
// over the node's API of drivers (k8s.io/kubelet/pkg/apis/dra, v1 and v1beta1).
//
// Which devices a claim has is in its allocation. A driver is asked to prepare a claim before the first pod that has it
// starts, and to unprepare it after the last one has ended. The only state that lasts is in one file, written before
// anybody acts on it: which pods have which claims, which drivers were asked, and what they have answered. So no claim
// stays prepared for want of an agent that knew of it, and a container can be started again by the next agent, whether
// or not the driver is there then.
package dra

import (
	"context"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Config is what a [Manager] works with. File is required.
type Config struct {
	File string // of the claims that pods have
	Boot string // of the machine: CDI files are in memory, those of an earlier one are gone
	Node string // its name, for the nodeSelector of allocations
	// Labels of the node; nil: none.
	Labels func() map[string]string
	Log    *slog.Logger
}

// Manager has the claims of all pods. A nil Manager has none. Its methods can be called at any time.
type Manager struct {
	cfg     Config
	log     *slog.Logger
	freed   chan struct{}
	orphans chan struct{} // there may be claims that no pod has any more
	metrics *metrics
	claims  *ledger
	drivers *drivers
}

// New takes over what pods had before. No driver is asked before [Manager.Run].
func New(c Config) (*Manager, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	l := &ledger{file: c.File, boot: c.Boot, claims: claims{}}
	metrics := newMetrics(l)
	m := &Manager{
		cfg: c, log: c.Log, freed: make(chan struct{}, 1), orphans: make(chan struct{}, 1),
		metrics: metrics, claims: l, drivers: newDrivers(c.Log, metrics.calls),
	}
	return m, l.load(c.Log)
}

// Changed tells that devices are otherwise than before. It is nil for a nil Manager.
func (m *Manager) Changed() <-chan struct{} {
	if m == nil {
		return nil
	}
	return m.drivers.changed
}

// Freed tells that a driver has come, or that a claim is nobody's any more: who has failed for want of that may try
// again. It is nil for a nil Manager.
func (m *Manager) Freed() <-chan struct{} {
	if m == nil {
		return nil
	}
	return m.freed
}

// Left are the claims that pods have, or that drivers have not unprepared.
func (m *Manager) Left() []string {
	var out []string
	for _, c := range m.claims.now() {
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

// Run unprepares the claims of pods that are gone, until ctx ends and nothing is heard of any driver any more. It runs
// once.
func (m *Manager) Run(ctx context.Context) error {
	defer m.drivers.close()
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
	defer ring(m.orphans)
	return m.claims.change(func(next claims) (bool, error) {
		for uid, c := range next {
			r := c.record
			r.Pods = slices.DeleteFunc(slices.Clone(r.Pods), func(p user) bool { return !here(p.UID) })
			if len(r.Pods) != len(c.Pods) {
				next[uid] = &claim{r, c.lock}
			}
		}
		return true, nil
	})
}

func (m *Manager) unprepareOrphans(ctx context.Context) error {
	var first error
	for _, uid := range m.claims.now().unused() {
		if err := m.release(ctx, uid, ""); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// Has says whether a pod has claims.
func (m *Manager) Has(pod types.UID) bool {
	return m != nil && len(m.claims.now().usedBy(pod)) > 0
}

// Register makes a plugin of the plugin registration directory the one of its driver. Its versions are the names of the
// services that it has. Of several of one name, as while a driver is updated, the last one is asked.
func (m *Manager) Register(name, socket string, versions []string) error {
	if err := m.drivers.register(name, socket, versions); err != nil {
		return err
	}
	ring(m.freed)
	ring(m.orphans)
	return nil
}

// Deregister lets the plugin of a driver go that is at that socket, the first of several: the next one may have taken
// its place there before it went.
func (m *Manager) Deregister(name, socket string) { m.drivers.deregister(name, socket) }

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
