package cluster

import (
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helpers "k8s.io/component-helpers/resource"
	fwk "k8s.io/kube-scheduler/framework"
)

// What a container that asks for nothing is taken to use where nodes are compared, so that such containers do not all
// come to one node. The numbers are Kubernetes'.
const (
	DefaultMilliCPU int64 = 100
	DefaultMemory   int64 = 200 << 20
)

// Resource is amounts of resources as integers, in which no map is looked at for those that every pod has.
type Resource struct {
	MilliCPU         int64
	Memory           int64
	EphemeralStorage int64
	AllowedPodNumber int
	ScalarResources  map[corev1.ResourceName]int64
}

var _ fwk.Resource = (*Resource)(nil)

// NewResource makes amounts of a list.
func NewResource(list corev1.ResourceList) *Resource {
	r := &Resource{}
	r.Add(list)
	return r
}

// GetMilliCPU implements [fwk.Resource].
func (r *Resource) GetMilliCPU() int64 { return r.MilliCPU }

// GetMemory implements [fwk.Resource].
func (r *Resource) GetMemory() int64 { return r.Memory }

// GetEphemeralStorage implements [fwk.Resource].
func (r *Resource) GetEphemeralStorage() int64 { return r.EphemeralStorage }

// GetAllowedPodNumber implements [fwk.Resource].
func (r *Resource) GetAllowedPodNumber() int { return r.AllowedPodNumber }

// GetScalarResources implements [fwk.Resource].
func (r *Resource) GetScalarResources() map[corev1.ResourceName]int64 { return r.ScalarResources }

// Add adds the amounts of a list.
func (r *Resource) Add(list corev1.ResourceList) {
	for name, quantity := range list {
		switch name {
		case corev1.ResourceCPU:
			r.MilliCPU += quantity.MilliValue()
		case corev1.ResourceMemory:
			r.Memory += quantity.Value()
		case corev1.ResourcePods:
			r.AllowedPodNumber += int(quantity.Value())
		case corev1.ResourceEphemeralStorage:
			r.EphemeralStorage += quantity.Value()
		default:
			if Scalar(name) {
				r.SetScalar(name, r.ScalarResources[name]+quantity.Value())
			}
		}
	}
}

// SetMaxResource implements [fwk.Resource].
func (r *Resource) SetMaxResource(list corev1.ResourceList) {
	for name, quantity := range list {
		switch name {
		case corev1.ResourceCPU:
			r.MilliCPU = max(r.MilliCPU, quantity.MilliValue())
		case corev1.ResourceMemory:
			r.Memory = max(r.Memory, quantity.Value())
		case corev1.ResourceEphemeralStorage:
			r.EphemeralStorage = max(r.EphemeralStorage, quantity.Value())
		case corev1.ResourcePods:
		default:
			if Scalar(name) {
				r.SetScalar(name, max(r.ScalarResources[name], quantity.Value()))
			}
		}
	}
}

// SetScalar sets the amount of a resource that only some pods have.
func (r *Resource) SetScalar(name corev1.ResourceName, amount int64) {
	if r.ScalarResources == nil {
		r.ScalarResources = map[corev1.ResourceName]int64{}
	}
	r.ScalarResources[name] = amount
}

// Clone is a copy.
func (r *Resource) Clone() *Resource {
	c := r.value()
	return &c
}

func (r *Resource) value() Resource {
	c := *r
	c.ScalarResources = maps.Clone(r.ScalarResources)
	return c
}

// plus adds sign times other, but for the number of pods.
func (r *Resource) plus(sign int64, other fwk.Resource) {
	r.MilliCPU += sign * other.GetMilliCPU()
	r.Memory += sign * other.GetMemory()
	r.EphemeralStorage += sign * other.GetEphemeralStorage()
	for name, amount := range other.GetScalarResources() {
		r.SetScalar(name, r.ScalarResources[name]+sign*amount)
	}
}

// Scalar says whether amounts of a resource are counted by its name: extended ones, huge pages, attachable volumes and
// whatever else Kubernetes' own domain has.
func Scalar(name corev1.ResourceName) bool {
	return Extended(name) || strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) ||
		strings.HasPrefix(string(name), corev1.ResourceAttachableVolumesPrefix) || native(name) && strings.Contains(string(name), "/")
}

// Extended says whether a resource is of somebody else than Kubernetes, such as a device plugin.
func Extended(name corev1.ResourceName) bool {
	return !native(name) && !strings.HasPrefix(string(name), corev1.DefaultResourceRequestsPrefix)
}

// native says whether a resource is Kubernetes' own.
func native(name corev1.ResourceName) bool {
	return !strings.Contains(string(name), "/") || strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
}

// options are what counts as a request of a pod. Where a pod is resized, what it has counts as long as it is more.
func options() helpers.PodResourcesOptions {
	return helpers.PodResourcesOptions{UseStatusResources: true, InPlacePodLevelResourcesVerticalScalingEnabled: true}
}

// Requests is what a pod asks for.
func Requests(pod *corev1.Pod) corev1.ResourceList { return helpers.PodRequests(pod, options()) }

// resourcesOf is what a pod asks for, and what it is taken to use where nodes are compared.
func resourcesOf(pod *corev1.Pod) fwk.PodResource {
	o := options()
	requests := NewResource(helpers.PodRequests(pod, o))
	result := fwk.PodResource{Resource: requests, Non0CPU: requests.MilliCPU, Non0Mem: requests.Memory}
	if asksForAll(pod) {
		return result
	}
	o.NonMissingContainerRequests = corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(DefaultMilliCPU, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(DefaultMemory, resource.DecimalSI),
	}
	filled := helpers.PodRequests(pod, o)
	result.Non0CPU, result.Non0Mem = filled.Cpu().MilliValue(), filled.Memory().Value()
	return result
}

// asksForAll says whether each container asks for a processor and memory, so that nothing need be made up.
func asksForAll(pod *corev1.Pod) bool {
	for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range containers {
			requests := containers[i].Resources.Requests
			if _, cpu := requests[corev1.ResourceCPU]; !cpu {
				return false
			}
			if _, memory := requests[corev1.ResourceMemory]; !memory {
				return false
			}
		}
	}
	return true
}
