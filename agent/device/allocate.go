package device

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-node/berth/agent/pinning"
)

// Allocate asks the plugins for what the pod was given, as far as they have not been asked yet. It can be repeated.
func (m *Manager) Allocate(ctx context.Context, pod *corev1.Pod) error {
	if m == nil {
		return nil
	}
	// Without a record, of an agent that did not know of devices say, it is as if the pod had just come.
	if err := m.Admit(pod, func(string) pinning.Nodes { return 0 }); err != nil {
		return err
	}
	for _, at := range m.unasked(pod.UID) {
		if err := m.allocate(ctx, at); err != nil {
			return fmt.Errorf("Allocate failed due to rpc error: %s: %w, which is unexpected", at.resource, err)
		}
	}
	return nil
}

func (m *Manager) unasked(uid types.UID) []place {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ledger.unasked(uid)
}

func (m *Manager) allocate(ctx context.Context, at place) error {
	p, err := m.inventory.plugin(at.resource)
	if err != nil {
		return err
	}
	options, err := p.known(ctx)
	if err != nil {
		return err
	}
	var liked []string
	if options.GetGetPreferredAllocationAvailable() {
		available, must, n := m.offer(at)
		if liked, err = p.preferred(ctx, available, must, n); err != nil {
			m.log.Warn("device plugin does not say which devices it prefers", "resource", string(at.resource),
				"uid", string(at.uid), "container", at.container, "error", err)
		}
	}
	ids, err := m.settle(at, liked)
	if err != nil {
		return err
	}
	began := time.Now()
	r, err := p.allocate(ctx, ids)
	m.metrics.allocations.WithLabelValues(string(at.resource)).Observe(time.Since(began).Seconds())
	if err != nil {
		return err
	}
	data, err := proto.Marshal(r)
	if err != nil {
		return fmt.Errorf("keep the plugin's answer: %w", err)
	}
	return m.change(at, func(h *held) {
		h.Allocated, h.PreStart, h.Response = true, options.GetPreStartRequired(), data
	})
}

// offer is what a plugin may choose from.
func (m *Manager) offer(at place) (available, must []string, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, i, h := m.ledger.locate(at)
	if h == nil {
		return nil, nil, 0
	}
	c := candidatesOf(m.inventory.units(at.resource), m.ledger.others(at.uid), a, i, at.resource)
	n = len(h.Devices)
	for _, d := range c.aligned(n, h.Near) {
		available = append(available, d.ID)
	}
	for _, d := range c.pick(min(n, len(c.must)), h.Near, nil) {
		must = append(must, d.ID)
	}
	return available, must, n
}

// settle chooses the devices of a record again before its plugin is asked: by what it likes, and by what is well now.
func (m *Manager) settle(at place, liked []string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, i, h := m.ledger.locate(at)
	if h == nil {
		return nil, errGone
	}
	c := candidatesOf(m.inventory.units(at.resource), m.ledger.others(at.uid), a, i, at.resource)
	n := len(h.Devices)
	if have := len(c.must) + len(c.free); have < n {
		return nil, &Shortage{at.resource, n, have}
	}
	if liked == nil {
		liked = h.ids()
	}
	chosen := c.pick(n, h.Near, liked)
	if slices.EqualFunc(chosen, h.Devices, func(x, y Device) bool { return x.ID == y.ID }) {
		return h.ids(), nil
	}
	if err := m.ledger.change(h, func(h *held) { h.Devices = chosen }); err != nil {
		return nil, err
	}
	return h.ids(), nil
}

var errGone = fmt.Errorf("its pod is gone")

// change writes a record again.
func (m *Manager) change(at place, fn func(*held)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, _, h := m.ledger.locate(at)
	if h == nil {
		return errGone
	}
	return m.ledger.change(h, fn)
}

// Start is to be called before a container is made, each time. It returns what the plugins have answered, in the order
// of their resources.
func (m *Manager) Start(
	ctx context.Context, pod *corev1.Pod, c *corev1.Container,
) ([]*pluginapi.ContainerAllocateResponse, error) {
	if m == nil {
		return nil, nil
	}
	m.mu.Lock()
	all := slices.Clone(m.ledger.heldBy(pod.UID, c.Name))
	m.mu.Unlock()
	var out []*pluginapi.ContainerAllocateResponse
	for i := range all {
		h := &all[i]
		if !h.Allocated {
			return nil, fmt.Errorf("device plugin for %s has not allocated devices %v", h.Resource, h.ids())
		}
		if h.PreStart {
			p, err := m.inventory.plugin(h.Resource)
			if err == nil {
				err = p.preStart(ctx, h.ids())
			}
			if err != nil {
				return nil, fmt.Errorf("PreStartContainer of %s: %w", h.Resource, err)
			}
		}
		r := &pluginapi.ContainerAllocateResponse{}
		if err := proto.Unmarshal(h.Response, r); err != nil {
			return nil, fmt.Errorf("answer of the device plugin for %s: %w", h.Resource, err)
		}
		out = append(out, r)
	}
	return out, nil
}
