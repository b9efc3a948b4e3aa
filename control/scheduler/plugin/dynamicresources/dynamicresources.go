// Package dynamicresources keeps pods on nodes where the devices that their claims ask for can be had, and allocates
// them for the node that is chosen.
package dynamicresources

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/plugin"
)

// Name is the plugin's in configurations.
const Name = "DynamicResources"

const key fwk.StateKey = Name

// expressions are how many selectors of devices are kept compiled.
const expressions = 100

// dynamicResources is the plugin.
type dynamicResources struct {
	claims   fwk.ResourceClaimTracker
	slices   fwk.ResourceSliceLister
	classes  fwk.DeviceClassLister
	resolver resolver
	compiled *cel.Cache
	filter   time.Duration // bounds the search for devices of one node; 0: nothing does
	write    *writer
}

// features are those that Kubernetes 1.37 has on.
func features() structured.Features {
	return structured.Features{
		AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true, DeviceTaints: true, FractionalCapacityRange: true,
		PartitionableDevices: true, PrioritizedList: true,
	}
}

// errNoManager is returned where nobody knows of devices.
var errNoManager = errors.New("the scheduler does not know of devices")

// New makes the plugin.
func New(_ context.Context, o runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	args, err := plugin.Args[configv1.DynamicResourcesArgs](o)
	if err != nil {
		return nil, err
	}
	m := h.SharedDRAManager()
	if m == nil {
		return nil, errNoManager
	}
	d := &dynamicResources{
		claims: m.ResourceClaims(), slices: m.ResourceSlices(), classes: m.DeviceClasses(), resolver: resolver{m.DeviceClassResolver()},
		compiled: cel.NewCache(expressions, cel.Features{EnableConsumableCapacity: true}), filter: configv1.DynamicResourcesFilterTimeoutDefault,
		write: &writer{
			client: h.ClientSet(), claims: m.ResourceClaims(), ready: configv1.DynamicResourcesBindingTimeoutDefault,
			informer: h.SharedInformerFactory().Resource().V1().ResourceClaims().Informer(),
		},
	}
	if t := args.FilterTimeout; t != nil {
		if t.Duration < 0 {
			return nil, fmt.Errorf("read arguments: filterTimeout is %s, and must not be negative", t.Duration)
		}
		d.filter = t.Duration
	}
	if t := args.BindingTimeout; t != nil {
		if t.Duration < time.Second {
			return nil, fmt.Errorf("read arguments: bindingTimeout is %s, and has to be at least a second", t.Duration)
		}
		d.write.ready = t.Duration
	}
	return d, nil
}

// Name is Kubernetes' name of the plugin.
func (*dynamicResources) Name() string { return Name }

// SignPod says what of a pod counts here.
func (d *dynamicResources) SignPod(_ context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	if len(pod.Spec.ResourceClaims) > 0 || len(d.resolver.asked(pod)) > 0 {
		return nil, fwk.NewStatus(fwk.Unschedulable, "pods with devices are placed one by one")
	}
	return nil, nil
}

// PreEnqueue keeps pods out of the queue until all their claims are there.
func (d *dynamicResources) PreEnqueue(_ context.Context, pod *corev1.Pod) *fwk.Status {
	if _, err := d.claimsOf(pod); err != nil {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	}
	return nil
}

// claimsOf are the claims that a pod names, or why one of them is none that it may use.
func (d *dynamicResources) claimsOf(pod *corev1.Pod) ([]*resourcev1.ResourceClaim, error) {
	var all []*resourcev1.ResourceClaim
	for i := range pod.Spec.ResourceClaims {
		name, owned, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil, err // it names the pod and the claim, as Kubernetes does
		}
		if name == nil {
			continue // none was needed
		}
		c, err := d.claims.Get(pod.Namespace, *name)
		if err != nil {
			return nil, err
		}
		if c.DeletionTimestamp != nil {
			return nil, fmt.Errorf("resourceclaim %q is being deleted", c.Name)
		}
		if owned {
			if err := resourceclaim.IsForPod(pod, c, false); err != nil {
				return nil, err
			}
		}
		all = append(all, c)
	}
	return all, nil
}
