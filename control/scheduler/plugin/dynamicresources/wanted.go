package dynamicresources

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"
	fwk "k8s.io/kube-scheduler/framework"
)

// wanted are the devices of a pod, and what was found for them, node by node.
type wanted struct {
	claims    []*claim
	extended  *extended            // what its containers ask for as resources; nil: nothing
	allocator structured.Allocator // nil: all claims have their devices

	mu    sync.Mutex
	found map[string]*choice
	// away are claims whose devices some node cannot have.
	away map[*claim]bool
	// held are allocations that are signalled, written the claims that were told of the pod, of which failed have
	// devices that are not made ready.
	held    []types.UID
	written []*resourcev1.ResourceClaim
	failed  map[types.UID]bool
}

// claim is a claim of the pod. Its allocation is given where it is allocated, or about to be for another pod.
type claim struct {
	object *resourcev1.ResourceClaim
	given  *resourcev1.AllocationResult
	shared bool                       // it is not written yet
	nodes  *nodeaffinity.NodeSelector // that have the devices; nil: all
}

// choice is what the claims without an allocation would get on a node.
type choice struct {
	results map[*claim]*resourcev1.AllocationResult
	special *resourcev1.ResourceClaim // what is to be made for resources; nil: nothing is
}

// Clone is itself: what is found for a node does not depend on what pods there are.
func (w *wanted) Clone() fwk.StateData { return w }

// PreFilter finds what the pod asks for; most pods ask for nothing.
func (d *dynamicResources) PreFilter(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	objects, err := d.claimsOf(pod)
	if err != nil {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	}
	w := &wanted{found: map[string]*choice{}, away: map[*claim]bool{}, failed: map[types.UID]bool{}}
	if w.extended, err = d.extendedOf(pod); err != nil {
		return nil, fwk.AsStatus(err)
	}
	if e := w.extended; e != nil && e.made != nil {
		objects = append(objects, e.made)
	}
	if len(objects) == 0 && w.extended == nil {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	open := w.extended != nil && w.extended.made == nil
	seen := map[types.UID]bool{}
	for _, o := range objects {
		if seen[o.UID] {
			continue // the pod may have one claim by two names
		}
		seen[o.UID] = true
		c, status := d.look(pod, o)
		if !status.IsSuccess() {
			return nil, status
		}
		w.claims = append(w.claims, c)
		open = open || c.given == nil
	}
	if open {
		if w.allocator, err = d.allocate(ctx); err != nil {
			return nil, fwk.AsStatus(err)
		}
	}
	state.Write(key, w)
	return nil, nil
}

// look is a claim with what is decided of it, or why the pod cannot have it.
func (d *dynamicResources) look(pod *corev1.Pod, o *resourcev1.ResourceClaim) (*claim, *fwk.Status) {
	c := &claim{object: o, given: o.Status.Allocation}
	if c.given == nil {
		c.given = d.claims.GetPendingAllocation(o.UID)
		c.shared = c.given != nil
	}
	if c.given == nil {
		return c, d.checkClasses(o)
	}
	if len(o.Status.ReservedFor) >= resourcev1.ResourceClaimReservedForMaxSize && !resourceclaim.IsReservedForPod(pod, o, false) {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "resourceclaim in use")
	}
	if s := c.given.NodeSelector; s != nil {
		nodes, err := nodeaffinity.NewNodeSelector(s)
		if err != nil {
			return nil, fwk.AsStatus(fmt.Errorf("read node selector of claim %s/%s: %w", o.Namespace, o.Name, err))
		}
		c.nodes = nodes
	}
	return c, nil
}

// checkClasses says whether all classes that a claim names are there.
func (d *dynamicResources) checkClasses(o *resourcev1.ResourceClaim) *fwk.Status {
	for i := range o.Spec.Devices.Requests {
		r := &o.Spec.Devices.Requests[i]
		names := map[string]string{}
		switch {
		case r.Exactly != nil:
			names[r.Name] = r.Exactly.DeviceClassName
		case len(r.FirstAvailable) > 0:
			for _, s := range r.FirstAvailable {
				names[resourceclaim.CreateSubRequestRef(r.Name, s.Name)] = s.DeviceClassName
			}
		default:
			return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("request %s: unsupported request type", r.Name))
		}
		for request, class := range names {
			_, err := d.classes.Get(class)
			if apierrors.IsNotFound(err) {
				return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("request %s: device class %s does not exist", request, class))
			}
			if err != nil {
				return fwk.AsStatus(fmt.Errorf("find device class %s: %w", class, err))
			}
		}
	}
	return nil
}

// allocate is an allocator on what is free now, allocations of pods that are bound meanwhile taken off.
func (d *dynamicResources) allocate(ctx context.Context) (structured.Allocator, error) {
	taken, err := d.claims.GatherAllocatedState()
	if err != nil {
		return nil, fmt.Errorf("see what devices are free: %w", err)
	}
	slices, err := d.slices.ListWithDeviceTaintRules()
	if err != nil {
		return nil, err
	}
	a, err := structured.NewAllocator(ctx, features(), *taken, d.classes, slices, d.compiled)
	if err != nil {
		return nil, fmt.Errorf("make allocator: %w", err)
	}
	return a, nil
}

// PreFilterExtensions are none: devices stay with claims when pods come and go.
func (*dynamicResources) PreFilterExtensions() fwk.PreFilterExtensions { return nil }
