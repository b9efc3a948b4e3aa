package pod

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/pinning"
	"github.com/berth-node/berth/agent/pod/spec"
)

// reasonDevices is why a pod waits for devices that a plugin does not hand out, by kubelet's name.
const reasonDevices = pinning.ReasonAdmission

// admitDevices gives a pod its devices, of the NUMA nodes that its admission has found for each of its containers.
func (m *Manager) admitDevices(pod *corev1.Pod) error {
	return m.cfg.Devices.Admit(pod, func(container string) pinning.Nodes { return m.cfg.Pins.Near(pod.UID, container) })
}

// Allocatable is what pods may request, with what device plugins offer.
func (n *node) Allocatable() corev1.ResourceList {
	_, devices := n.cfg.Devices.Resources()
	if len(devices) == 0 {
		return n.cfg.Allocatable
	}
	out := n.cfg.Allocatable.DeepCopy()
	maps.Copy(out, devices)
	return out
}

// devicesChanged tells the pods that have devices, whose status may be another one, and asks again for those that wait for some.
func (m *Manager) devicesChanged(ctx context.Context) {
	m.workers.Range(func(uid, w any) bool {
		if m.cfg.Devices.Has(uid.(types.UID)) { //nolint:forcetypeassert // nothing else is in there
			w.(*worker).mail.ring() //nolint:forcetypeassert // nothing else is in there
		}
		return true
	})
	m.retryHeld(ctx)
}

// makeDevices asks the plugins for the pod's devices.
func (s *site) makeDevices(ctx context.Context) error {
	if err := s.cfg.Devices.Allocate(ctx, s.pod); err != nil {
		return &reasoned{reasonDevices, err}
	}
	return nil
}

// injection is what the container gets for its devices.
func (l *launch) injection(ctx context.Context) (spec.Injection, error) {
	var out spec.Injection
	answers, err := l.cfg.Devices.Start(ctx, l.pod, l.c)
	if err != nil {
		return out, fmt.Errorf("devices: %w", err)
	}
	for _, a := range answers {
		out.Add(a)
	}
	cdi, err := l.cfg.Claims.CDI(l.pod, l.c)
	if err != nil {
		return out, fmt.Errorf("resource claims: %w", err)
	}
	out.AddCDI(cdi...)
	return out, nil
}
