package dynamicresources

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/plugin"
)

// Why a node is not taken, in Kubernetes' words.
const (
	notHere  = "resourceclaim not available on the node"
	cannot   = "cannot allocate all claims"
	timedOut = "timed out trying to allocate devices"
)

// errTimeout is why the search for devices of one node ends.
var errTimeout = errors.New(timedOut)

// Filter takes nodes that have the devices, or can have them, and notes which they would be.
func (d *dynamicResources) Filter(ctx context.Context, state fwk.CycleState, _ *corev1.Pod, info fwk.NodeInfo) *fwk.Status {
	w, err := plugin.Read[*wanted](state, key)
	if err != nil {
		return fwk.AsStatus(err)
	}
	var open []*claim
	here := true
	for _, c := range w.claims {
		switch {
		case c.given == nil:
			open = append(open, c)
		case c.nodes != nil && !c.nodes.Match(info.Node()):
			here = false
			w.isAway(c)
		}
	}
	if !here {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, notHere)
	}
	found, status := d.search(ctx, w, open, info)
	if !status.IsSuccess() {
		return status
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.found[info.Node().Name] = found
	return nil
}

func (w *wanted) isAway(c *claim) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.away[c] = true
}

// search finds devices for all open claims on a node.
func (d *dynamicResources) search(ctx context.Context, w *wanted, open []*claim, info fwk.NodeInfo) (*choice, *fwk.Status) {
	found := &choice{results: map[*claim]*resourcev1.AllocationResult{}}
	objects := make([]*resourcev1.ResourceClaim, 0, len(open)+1)
	for _, c := range open {
		objects = append(objects, c.object)
	}
	if w.extended != nil {
		found.special = w.extended.on(info)
	}
	if found.special != nil {
		objects = append(objects, found.special)
	}
	if len(objects) == 0 {
		return found, nil
	}
	if d.filter > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, d.filter, errTimeout)
		defer cancel()
	}
	results, err := w.allocator.Allocate(ctx, info.Node(), objects)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		// Other nodes are enough, or none will be.
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, context.Cause(ctx).Error())
	case errors.Is(err, structured.ErrFailedAllocationOnNode):
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	default:
		// A claim, or its class, is at fault: no other node would help.
		return nil, fwk.AsStatus(err)
	}
	if len(results) != len(objects) {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, cannot)
	}
	for i, c := range open {
		found.results[c] = &results[i]
	}
	if found.special != nil {
		found.special = found.special.DeepCopy()
		found.special.Status.Allocation = &results[len(open)]
	}
	return found, nil
}

// PostFilter gives back the devices of a claim that only this pod wants, so that they may be others, on another node.
func (d *dynamicResources) PostFilter(
	ctx context.Context, state fwk.CycleState, pod *corev1.Pod, _ fwk.NodeToStatusReader,
) (*fwk.PostFilterResult, *fwk.Status) {
	w, err := plugin.Read[*wanted](state, key)
	if err != nil {
		return nil, fwk.NewStatus(fwk.Unschedulable, "no new claims to deallocate")
	}
	for c := range w.away {
		if c.shared || !spare(c.object, pod) || d.claims.GetPendingAllocation(c.object.UID) != nil {
			continue
		}
		if w.extended != nil && c.object == w.extended.made {
			err = d.write.remove(ctx, c.object)
		} else {
			err = d.write.deallocate(ctx, c.object)
		}
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			break // it is another one since, which is an event that the pod is tried again by
		}
		if err != nil {
			return nil, fwk.AsStatus(err)
		}
		return nil, fwk.NewStatus(fwk.Unschedulable, "deallocation of ResourceClaim completed")
	}
	return nil, fwk.NewStatus(fwk.Unschedulable, "still not schedulable")
}

// spare says whether nobody but a pod, if even that, has reserved a claim.
func spare(c *resourcev1.ResourceClaim, pod *corev1.Pod) bool {
	return !slices.ContainsFunc(c.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID != pod.UID })
}

// PreScore says whether there is anything to prefer.
func (*dynamicResources) PreScore(_ context.Context, state fwk.CycleState, _ *corev1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	w, err := plugin.Read[*wanted](state, key)
	if err != nil {
		return fwk.NewStatus(fwk.Skip)
	}
	for _, c := range w.claims {
		if c.given == nil && slices.ContainsFunc(c.object.Spec.Devices.Requests, func(r resourcev1.DeviceRequest) bool { return len(r.FirstAvailable) > 0 }) {
			return nil
		}
	}
	return fwk.NewStatus(fwk.Skip)
}

// Score prefers nodes where requests that have several choices get the first ones.
func (*dynamicResources) Score(_ context.Context, state fwk.CycleState, _ *corev1.Pod, info fwk.NodeInfo) (int64, *fwk.Status) {
	w, err := plugin.Read[*wanted](state, key)
	if err != nil {
		return 0, fwk.AsStatus(err)
	}
	w.mu.Lock()
	found := w.found[info.Node().Name]
	w.mu.Unlock()
	if found == nil {
		return 0, fwk.AsStatus(fmt.Errorf("score node %s: no devices were found for it", info.Node().Name))
	}
	total := int64(0)
	for c, result := range found.results {
		total += preferred(c.object, result)
	}
	return total, nil
}

// preferred is the more the earlier the choices are that a claim's requests have got.
func preferred(c *resourcev1.ResourceClaim, result *resourcev1.AllocationResult) int64 {
	total := int64(0)
	for i := range c.Spec.Devices.Requests {
		r := &c.Spec.Devices.Requests[i]
		for at, s := range r.FirstAvailable {
			ref := resourceclaim.CreateSubRequestRef(r.Name, s.Name)
			if slices.ContainsFunc(result.Devices.Results, func(d resourcev1.DeviceRequestAllocationResult) bool { return d.Request == ref }) {
				total += int64(resourcev1.FirstAvailableDeviceRequestMaxSize - at)
				break
			}
		}
	}
	return total
}

// ScoreExtensions give the best node the maximum.
func (*dynamicResources) ScoreExtensions() fwk.ScoreExtensions { return plugin.Ascending{} }
