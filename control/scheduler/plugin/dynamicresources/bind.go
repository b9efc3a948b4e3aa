package dynamicresources

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/plugin"
)

// undoing bounds what is written when a pod is not bound after all, which no one waits for.
const undoing = 30 * time.Second

// Reserve has what was found for a node count as taken.
func (d *dynamicResources) Reserve(_ context.Context, state fwk.CycleState, _ *corev1.Pod, node string) *fwk.Status {
	w, err := plugin.Read[*wanted](state, key)
	if err != nil {
		return nil // the pod has no claims
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	found := w.found[node]
	if found == nil {
		return fwk.AsStatus(fmt.Errorf("allocate devices: none were found on node %s", node))
	}
	var all []*resourcev1.ResourceClaim
	for _, c := range w.claims {
		result := found.results[c]
		if c.shared {
			result = c.given // the pod for which it was decided may not come to its end
		}
		if result != nil {
			o := c.object.DeepCopy()
			o.Status.Allocation = result
			all = append(all, o)
		}
	}
	if found.special != nil {
		all = append(all, found.special)
	}
	for _, o := range all {
		if err := d.claims.SignalClaimPendingAllocation(o.UID, o); err != nil {
			return fwk.AsStatus(err) // Unreserve gives back what was signalled
		}
		w.held = append(w.held, o.UID)
	}
	return nil
}

// release has the decided allocations of the pod count no more: they are written, or given up.
func (d *dynamicResources) release(w *wanted) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, uid := range w.held {
		// Never by force: another pod may be about to write the same allocation.
		d.claims.MaybeRemoveClaimPendingAllocation(uid, false)
	}
	w.held = nil
}

// PreBindPreFlight says whether there is anything to write.
func (d *dynamicResources) PreBindPreFlight(
	_ context.Context, state fwk.CycleState, pod *corev1.Pod, _ string,
) (*fwk.PreBindPreFlightResult, *fwk.Status) {
	w, err := plugin.Read[*wanted](state, key)
	if err != nil {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	if w.extended != nil {
		return &fwk.PreBindPreFlightResult{AllowParallel: true}, nil
	}
	for _, c := range w.claims {
		if c.object.Status.Allocation == nil || !resourceclaim.IsReservedForPod(pod, c.object, false) || binds(c.given) {
			return &fwk.PreBindPreFlightResult{AllowParallel: true}, nil
		}
	}
	return nil, fwk.NewStatus(fwk.Skip)
}

// PreBind writes what was decided, claim by claim: first the finalizer by which a claim stays as long as it has
// devices, then the devices and the pod in one write. Who is killed in between leaves claims that the next attempt goes
// on from.
func (d *dynamicResources) PreBind(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node string) *fwk.Status {
	w, err := plugin.Read[*wanted](state, key)
	if err != nil {
		return nil
	}
	w.mu.Lock()
	found := w.found[node]
	w.mu.Unlock()
	if found == nil {
		return fwk.AsStatus(fmt.Errorf("allocate devices: none were found on node %s", node))
	}
	for _, c := range w.claims {
		plan := found.results[c]
		if plan == nil {
			plan = c.given
		}
		o, err := d.write.reserve(ctx, c.object, plan, pod)
		if err != nil {
			// It may be written all the same: who gives it back looks.
			w.wrote(c.object)
			return fwk.AsStatus(err)
		}
		w.wrote(o)
	}
	if w.extended != nil {
		if err := d.write.bindExtended(ctx, w, found.special, pod); err != nil {
			return fwk.AsStatus(err)
		}
	}
	d.release(w)
	if err := d.write.awaitReady(ctx, w); err != nil {
		return fwk.AsStatus(err)
	}
	return nil
}

func (w *wanted) wrote(o *resourcev1.ResourceClaim) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.written = append(w.written, o)
}

// Unreserve gives back what Reserve has taken, and has claims forget the pod. Their devices stay theirs: the pod is
// tried again, and PostFilter or the controller of claims free what nobody uses.
func (d *dynamicResources) Unreserve(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, _ string) {
	w, err := plugin.Read[*wanted](state, key)
	if err != nil {
		return
	}
	w.mu.Lock()
	written := w.written
	w.written = nil
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoing)
	defer cancel()
	var failed []error
	for _, o := range written {
		if o.Annotations[resourcev1.ExtendedResourceClaimAnnotation] == "true" {
			failed = append(failed, d.write.remove(ctx, o))
		} else {
			failed = append(failed, d.write.forget(ctx, o, pod.UID, w.failed[o.UID]))
		}
	}
	d.release(w)
	if err := errors.Join(failed...); err != nil {
		// The pod is still to be scheduled: its next attempt finds the claims as they are.
		report(ctx, pod, err)
	}
}

// failedUID notes a claim whose devices are not made ready.
func (w *wanted) failedUID(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failed[uid] = true
}
