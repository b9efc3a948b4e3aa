package dra

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	cdiparser "tags.cncf.io/container-device-interface/pkg/parser"
)

// Prepare gives a pod its claims and has their drivers prepare them, as far as they have not done so. It can be
// repeated. What it has done when it fails stays for the next try, or for [Manager.Release].
func (m *Manager) Prepare(ctx context.Context, pod *corev1.Pod, find Lookup) (err error) {
	if len(pod.Spec.ResourceClaims) == 0 {
		return nil
	}
	if m == nil {
		return errors.New("this agent has no drivers of dynamic resources")
	}
	defer m.measure("PrepareResources", time.Now(), &err)
	for _, uid := range m.claims.now().outdated(pod, find) {
		if err := m.release(ctx, uid, pod.UID); err != nil {
			return err
		}
	}
	uids, err := m.reserve(pod, find)
	if err != nil {
		return err
	}
	// Pods that share claims wait for each other in the same order.
	for _, uid := range uids {
		leave, err := m.claims.enter(ctx, uid)
		if err != nil {
			return err
		}
		defer leave()
	}
	var errs []error
	names, wanted := m.claims.now().unprepared(uids)
	for _, name := range names {
		errs = append(errs, m.prepare(ctx, name, wanted[name]))
	}
	return errors.Join(errs...)
}

func (m *Manager) prepare(ctx context.Context, name string, claims []record) error {
	p, err := m.drivers.last(name)
	if err != nil {
		return err
	}
	// That it was asked is known before it is. One that never came is not, so that nobody waits for it to take anything
	// back.
	for _, r := range claims {
		if _, err := m.claims.set(r.UID, func(r *record) { r.Drivers[name] = driver{Boot: m.cfg.Boot} }); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := p.client.NodePrepareResources(ctx, &drav1.NodePrepareResourcesRequest{Claims: named(claims)})
	if err != nil {
		return fmt.Errorf("NodePrepareResources of DRA driver %s: %w", name, err)
	}
	var errs []error
	for _, r := range claims {
		devices, err := prepared(answer, r.UID)
		if err != nil {
			errs = append(errs, fmt.Errorf("NodePrepareResources of DRA driver %s failed for %s: %w", name, &r, err))
			continue
		}
		if _, err := m.claims.set(r.UID, func(r *record) { r.Drivers[name] = driver{m.cfg.Boot, true, devices} }); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func named(claims []record) []*drav1.Claim {
	var out []*drav1.Claim
	for _, r := range claims {
		out = append(out, &drav1.Claim{Namespace: r.Namespace, Name: r.Name, Uid: string(r.UID)})
	}
	return out
}

// prepared is what a driver has answered for a claim.
func prepared(answer *drav1.NodePrepareResourcesResponse, uid types.UID) ([]device, error) {
	one, ok := answer.GetClaims()[string(uid)]
	switch {
	case !ok:
		return nil, errors.New("its answer leaves the claim out")
	case one.GetError() != "":
		return nil, errors.New(one.GetError())
	}
	var out []device
	for _, d := range one.GetDevices() {
		if d.GetPoolName() == "" || d.GetDeviceName() == "" {
			return nil, errors.New("its answer has a device without a pool_name or a device_name")
		}
		for _, id := range d.GetCdiDeviceIds() {
			if _, _, _, err := cdiparser.ParseQualifiedName(id); err != nil {
				return nil, fmt.Errorf("its answer has a CDI device id that is not <vendor>/<class>=<name>: %w", err)
			}
		}
		out = append(out, device{
			Requests: d.GetRequestNames(), Pool: d.GetPoolName(), Device: d.GetDeviceName(),
			Share: types.UID(d.GetShareId()), CDI: d.GetCdiDeviceIds(),
		})
	}
	return out, nil
}

// Release takes the claims from a pod of which nothing runs any more, and has those unprepared that no other pod has.
// It can be repeated until the drivers have done so.
func (m *Manager) Release(ctx context.Context, pod types.UID) (err error) {
	if m == nil {
		return nil
	}
	all := m.claims.now().usedBy(pod)
	if len(all) == 0 {
		return nil
	}
	defer m.measure("UnprepareResources", time.Now(), &err)
	var errs []error
	for _, uid := range all {
		errs = append(errs, m.release(ctx, uid, pod))
	}
	return errors.Join(errs...)
}

// release takes a claim from a pod; "": from none, but nobody has it. The pod is in the record until the drivers have
// unprepared the claim, so that whoever ends the pod after a crash asks them again.
func (m *Manager) release(ctx context.Context, uid, pod types.UID) error {
	leave, err := m.claims.enter(ctx, uid)
	if err != nil {
		return err
	}
	defer leave()
	last := false
	there, err := m.claims.set(uid, func(r *record) {
		if last = len(r.others(pod)) == 0; !last {
			r.Pods = r.others(pod)
			return
		}
		// Half of it may be undone from now on: who comes meanwhile has it prepared again.
		for name, d := range r.Drivers {
			r.Drivers[name] = driver{Boot: d.Boot}
		}
	})
	if err != nil || !there {
		return err
	}
	if !last {
		return nil
	}
	var errs []error
	r := m.claims.now()[uid]
	for _, name := range slices.Sorted(maps.Keys(r.Drivers)) {
		errs = append(errs, m.unprepare(ctx, name, r.record))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	_, err = m.claims.set(uid, func(r *record) { r.Pods = r.others(pod) })
	ring(m.freed)
	return err
}

// others are those who have the claim beside a pod.
func (r *record) others(pod types.UID) []user {
	return slices.DeleteFunc(slices.Clone(r.Pods), func(u user) bool { return u.UID == pod })
}

func (m *Manager) unprepare(ctx context.Context, name string, r record) error {
	if r.unprepares(name) {
		p, err := m.drivers.last(name)
		if err != nil {
			return fmt.Errorf("unprepare %s: %w", &r, err)
		}
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		answer, err := p.client.NodeUnprepareResources(ctx, &drav1.NodeUnprepareResourcesRequest{Claims: named([]record{r})})
		if err != nil {
			return fmt.Errorf("NodeUnprepareResources of DRA driver %s: %w", name, err)
		}
		one, ok := answer.GetClaims()[string(r.UID)]
		switch {
		case !ok:
			return fmt.Errorf("NodeUnprepareResources of DRA driver %s failed for %s: its answer leaves the claim out", name, &r)
		case one.GetError() != "":
			return fmt.Errorf("NodeUnprepareResources of DRA driver %s failed for %s: %s", name, &r, one.GetError())
		}
	}
	_, err := m.claims.set(r.UID, func(r *record) { delete(r.Drivers, name) })
	return err
}
