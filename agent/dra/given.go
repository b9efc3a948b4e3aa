package dra

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	podsv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// CDI are the CDI devices that a container gets for the claims that it names. It fails where one is not prepared.
func (m *Manager) CDI(pod *corev1.Pod, c *corev1.Container) ([]string, error) {
	if m == nil || len(c.Resources.Claims) == 0 {
		return nil, nil
	}
	all := m.claims.now()
	var out []string
	for _, e := range c.Resources.Claims {
		r := all.entry(pod.UID, e.Name)
		if r == nil {
			return nil, fmt.Errorf("the pod does not have claim %q", e.Name)
		}
		for _, name := range r.drivers() {
			d := r.Drivers[name]
			if !d.Prepared {
				return nil, fmt.Errorf("DRA driver %s has not prepared %s", name, &r.record)
			}
			for i := range d.Devices {
				if d.Devices[i].of(e.Request) {
					out = append(out, d.Devices[i].CDI...)
				}
			}
		}
	}
	return out, nil
}

// Health is how the devices of claims are that a pod's containers name, as its status tells it.
func (m *Manager) Health(pod *corev1.Pod) map[string][]corev1.ResourceStatus {
	if m == nil || len(pod.Spec.ResourceClaims) == 0 {
		return nil
	}
	all := m.claims.now()
	out := map[string][]corev1.ResourceStatus{}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for _, e := range list[i].Resources.Claims {
				if st := m.healthOfEntry(all.entry(pod.UID, e.Name), e, time.Now()); len(st.Resources) > 0 {
					out[list[i].Name] = append(out[list[i].Name], st)
				}
			}
		}
	}
	return out
}

func (m *Manager) healthOfEntry(c *claim, e corev1.ResourceClaim, now time.Time) corev1.ResourceStatus {
	name := "claim:" + e.Name
	if e.Request != "" {
		name += "/" + e.Request
	}
	st := corev1.ResourceStatus{Name: corev1.ResourceName(name)}
	c.each(e.Request, func(driver string, d *device) {
		id := corev1.ResourceID(driver + "/" + d.Pool + "/" + d.Device)
		if slices.ContainsFunc(st.Resources, func(h corev1.ResourceHealth) bool { return h.ResourceID == id }) {
			return // another share of it
		}
		h := corev1.ResourceHealth{ResourceID: id}
		var text string
		if h.Health, text = m.drivers.healthAt(driver, deviceKey{d.Pool, d.Device}, now); text != "" {
			h.Message = &text
		}
		st.Resources = append(st.Resources, h)
	})
	return st
}

// each calls fn with the devices that a request was answered with, in order; without a claim there are none.
func (c *claim) each(request string, fn func(driver string, d *device)) {
	if c == nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(c.Drivers)) {
		for i := range c.Drivers[name].Devices {
			if d := &c.Drivers[name].Devices[i]; d.of(request) {
				fn(name, d)
			}
		}
	}
}

// Dynamic is what a container has by claims, as the pod-resources API tells it.
func (m *Manager) Dynamic(pod *corev1.Pod, container string) []*podsv1.DynamicResource {
	if m == nil {
		return nil
	}
	all := m.claims.now()
	var out []*podsv1.DynamicResource
	for _, e := range entries(pod, container) {
		c := all.entry(pod.UID, e.Name)
		if c == nil {
			continue
		}
		one := &podsv1.DynamicResource{ClaimName: c.Name, ClaimNamespace: c.Namespace}
		c.each(e.Request, func(driver string, d *device) {
			r := &podsv1.ClaimResource{DriverName: driver, PoolName: d.Pool, DeviceName: d.Device}
			if d.Share != "" {
				share := string(d.Share)
				r.ShareId = &share
			}
			for _, id := range d.CDI {
				r.CdiDevices = append(r.CdiDevices, &podsv1.CDIDevice{Name: id})
			}
			one.ClaimResources = append(one.ClaimResources, r)
		})
		out = append(out, one)
	}
	return out
}
