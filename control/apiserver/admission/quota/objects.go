package quota

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
)

func one() resource.Quantity { return *resource.NewQuantity(1, resource.DecimalSI) }

func serviceNames(name corev1.ResourceName) bool {
	return slices.Contains([]corev1.ResourceName{corev1.ResourceServices, corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers}, name)
}

// serviceUsage is what a service counts for: as one, and by the ports and load balancers that it has.
func serviceUsage(o runtime.Object) (corev1.ResourceList, error) {
	service, ok := o.(*corev1.Service)
	if !ok {
		return nil, fmt.Errorf("a %T is no service", o)
	}
	usage := corev1.ResourceList{
		"count/services": one(), corev1.ResourceServices: one(),
		corev1.ResourceServicesLoadBalancers: {Format: resource.DecimalSI}, corev1.ResourceServicesNodePorts: {Format: resource.DecimalSI},
	}
	ports := *resource.NewQuantity(int64(len(service.Spec.Ports)), resource.DecimalSI)
	switch service.Spec.Type {
	case corev1.ServiceTypeNodePort:
		usage[corev1.ResourceServicesNodePorts] = ports
	case corev1.ServiceTypeLoadBalancer:
		usage[corev1.ResourceServicesLoadBalancers] = one()
		if a := service.Spec.AllocateLoadBalancerNodePorts; a == nil || *a {
			usage[corev1.ResourceServicesNodePorts] = ports
		} else {
			given := int64(0)
			for _, p := range service.Spec.Ports {
				if p.NodePort != 0 {
					given++
				}
			}
			usage[corev1.ResourceServicesNodePorts] = *resource.NewQuantity(given, resource.DecimalSI)
		}
	}
	return usage, nil
}

// classSuffix is what follows the name of a storage class in CLASS.storageclass.storage.k8s.io/requests.storage.
const classSuffix = ".storageclass.storage.k8s.io/"

func claimNames(name corev1.ResourceName) bool {
	own := func(n corev1.ResourceName) bool {
		return n == corev1.ResourcePersistentVolumeClaims || n == corev1.ResourceRequestsStorage
	}
	_, of, has := strings.Cut(string(name), classSuffix)
	return own(name) || has && own(corev1.ResourceName(of))
}

// claimUsage is what a claim counts for, by its class too. The greater counts of what is asked for and what is there.
func claimUsage(o runtime.Object) (corev1.ResourceList, error) {
	claim, ok := o.(*corev1.PersistentVolumeClaim)
	if !ok {
		return nil, fmt.Errorf("a %T is no claim of a volume", o)
	}
	usage := corev1.ResourceList{"count/persistentvolumeclaims": one(), corev1.ResourcePersistentVolumeClaims: one()}
	class, old := claim.Annotations[corev1.BetaStorageClassAnnotation]
	if !old && claim.Spec.StorageClassName != nil {
		class = *claim.Spec.StorageClassName
	}
	if class != "" {
		usage[corev1.ResourceName(class+classSuffix)+corev1.ResourcePersistentVolumeClaims] = one()
	}
	storage, asked := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if !asked {
		return usage, nil
	}
	// A claim that was to grow and is asked to be small again has the room that is being made.
	if allocated, ok := claim.Status.AllocatedResources[corev1.ResourceStorage]; ok && allocated.Cmp(storage) > 0 {
		storage = allocated
	}
	usage[corev1.ResourceRequestsStorage] = storage
	if class != "" {
		usage[corev1.ResourceName(class+classSuffix)+corev1.ResourceRequestsStorage] = storage
	}
	return usage, nil
}

// claimScope tells whether a claim is of an attributes class: the one that it asks for, has, or is being given.
func claimScope(s selector, o runtime.Object) (bool, error) {
	claim, ok := o.(*corev1.PersistentVolumeClaim)
	if !ok {
		return false, fmt.Errorf("a %T is no claim of a volume", o)
	}
	if s.ScopeName != corev1.ResourceQuotaScopeVolumeAttributesClass {
		return false, nil
	}
	var names []string
	for _, name := range []*string{claim.Spec.VolumeAttributesClassName, claim.Status.CurrentVolumeAttributesClassName} {
		if name != nil && *name != "" {
			names = append(names, *name)
		}
	}
	if m := claim.Status.ModifyVolumeStatus; m != nil && m.TargetVolumeAttributesClassName != "" {
		names = append(names, m.TargetVolumeAttributesClassName)
	}
	if len(names) == 0 {
		return selects(s, "")
	}
	for _, name := range names {
		if ok, err := selects(s, name); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}
