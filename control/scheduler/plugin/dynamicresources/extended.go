package dynamicresources

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/cluster"
)

// extended are the resources of a pod that classes of devices stand for.
type extended struct {
	pod  *corev1.Pod
	asks []ask
	// made is the claim that was made for them in an attempt that came to no end, and is allocated; stale is one that
	// is not, and is of no use.
	made, stale *resourcev1.ResourceClaim

	mu       sync.Mutex
	specials map[string]*resourcev1.ResourceClaim // by the resources that nodes do not have themselves
}

// ask is what a container asks for, and which request is for it.
type ask struct {
	container string
	resource  corev1.ResourceName
	class     string
	count     int64
	request   string
	shared    bool // an earlier ask has the request
}

// resolver knows which classes stand for resources.
type resolver struct{ fwk.DeviceClassResolver }

// asked are the asks of a pod: most have none.
func (d resolver) asked(pod *corev1.Pod) []ask {
	var all []ask
	lists := [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers}
	first := len(pod.Spec.InitContainers) // requests count init containers first
	for l, containers := range lists {
		for i := range containers {
			c, number := &containers[i], i
			if l == 0 {
				number += first
			}
			for at, name := range slices.Sorted(maps.Keys(c.Resources.Requests)) {
				q := c.Resources.Requests[name]
				class := d.class(name)
				if class == "" || q.Value() <= 0 {
					continue
				}
				a := ask{container: c.Name, resource: name, class: class, count: q.Value(), request: fmt.Sprintf("container-%d-request-%d", number, at)}
				always := c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
				if l == 1 && !always {
					reuse(&a, all)
				}
				all = append(all, a)
			}
		}
	}
	return all
}

// reuse has a container that ends before others begin use the devices of one of them.
func reuse(a *ask, all []ask) {
	for _, other := range all {
		if other.resource == a.resource && other.count == a.count {
			a.request, a.shared = other.request, true
			return
		}
	}
}

// class is the name of the class that stands for a resource, if one does.
func (d resolver) class(name corev1.ResourceName) string {
	if d.DeviceClassResolver == nil || !cluster.Extended(name) && !strings.HasPrefix(string(name), resourcev1.ResourceDeviceClassPrefix) {
		return ""
	}
	if c := d.GetDeviceClass(name); c != nil {
		return c.Name
	}
	return ""
}

// extendedOf are the resources of a pod that devices may give.
func (d *dynamicResources) extendedOf(pod *corev1.Pod) (*extended, error) {
	asks := d.resolver.asked(pod)
	if len(asks) == 0 {
		return nil, nil
	}
	e := &extended{pod: pod, asks: asks, specials: map[string]*resourcev1.ResourceClaim{}}
	all, err := d.claims.List()
	if err != nil {
		return nil, err
	}
	for _, c := range all {
		switch {
		case c.Namespace != pod.Namespace || c.Annotations[resourcev1.ExtendedResourceClaimAnnotation] != "true" || !metav1.IsControlledBy(c, pod):
		case c.Status.Allocation != nil && c.DeletionTimestamp == nil:
			e.made = c
		default:
			e.stale = c
		}
	}
	return e, nil
}

// on is the claim, not made yet, for what a node does not have itself; nil: it has all.
func (e *extended) on(info fwk.NodeInfo) *resourcev1.ResourceClaim {
	if e.made != nil {
		return nil
	}
	has := info.GetAllocatable().GetScalarResources()
	var asks []ask
	var names []string
	for _, a := range e.asks {
		if has[a.resource] > 0 || a.shared {
			continue
		}
		asks = append(asks, a)
		names = append(names, a.request)
	}
	if len(asks) == 0 {
		return nil
	}
	key := strings.Join(names, ",")
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.specials[key] == nil {
		e.specials[key] = special(e.pod, asks)
	}
	return e.specials[key]
}

// special is a claim of devices for resources. Its UID is that of the claim in memory: the API gives another one.
func special(pod *corev1.Pod, asks []ask) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: "<extended-resources>", UID: types.UID(uuid.NewUUID()),
		GenerateName:    pod.Name + "-extended-resources-",
		Annotations:     map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod"))},
	}}
	for _, a := range asks {
		c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, resourcev1.DeviceRequest{
			Name: a.request, Exactly: &resourcev1.ExactDeviceRequest{
				DeviceClassName: a.class, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: a.count,
			},
		})
	}
	return c
}

// mappings say which requests of a claim are for which containers.
func (e *extended) mappings(c *resourcev1.ResourceClaim) []corev1.ContainerExtendedResourceRequest {
	var all []corev1.ContainerExtendedResourceRequest
	for _, a := range e.asks {
		if slices.ContainsFunc(c.Spec.Devices.Requests, func(r resourcev1.DeviceRequest) bool { return r.Name == a.request }) {
			all = append(all, corev1.ContainerExtendedResourceRequest{
				ContainerName: a.container, ResourceName: string(a.resource), RequestName: a.request,
			})
		}
	}
	return all
}
