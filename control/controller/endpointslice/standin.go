package endpointslice

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	typeddiscoveryv1 "k8s.io/client-go/kubernetes/typed/discovery/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-node/berth/control/controller"
	"github.com/berth-node/berth/control/controller/endpoints"
)

// portSets are the sets of ports of a service's endpoints. The library is given the number of a set in place of its
// ports, as the one port that there is: it looks for each port of a service in each pod, and calculates a hash of all
// of them for each pod, some 50 µs a port. Of 1,000 pods and 10,000 ports that were minutes, and gigabytes, each time
// that one of the pods changes.
type portSets = controller.PortSets[[]discoveryv1.EndpointPort]

// standIns are what the library is given in place of a service, its pods and its slices. Of pods each of which has
// ports of its own only those are there that come first by name, and whole is false.
type standIns struct {
	service *corev1.Service
	pods    []*corev1.Pod
	slices  []*discoveryv1.EndpointSlice
	sets    *portSets
	whole   bool
}

// inPlaceOf is the one port of a pod, by its name.
const inPlaceOf = "set"

func newStandIns(service *corev1.Service, pods []*corev1.Pod, has []*discoveryv1.EndpointSlice) standIns {
	s := standIns{service: service, sets: &portSets{}}
	if len(service.Spec.Ports) > 0 {
		copied := *service
		copied.Spec.Ports = []corev1.ServicePort{{TargetPort: intstr.FromString(inPlaceOf), Protocol: corev1.ProtocolTCP}}
		s.service = &copied
	}
	if !s.add(service, pods) {
		s.pods, s.sets = nil, &portSets{}
		s.add(service, endpoints.ByName(pods))
	}
	for _, slice := range has {
		if len(slice.Ports) > 0 {
			copied := *slice
			copied.Ports = onePort(s.number(slice.Ports))
			slice = &copied
		}
		s.slices = append(s.slices, slice)
	}
	return s
}

func (s *standIns) number(ports []discoveryv1.EndpointPort) int32 {
	return int32(s.sets.Number(controller.PortsKey(ports), ports))
}

func onePort(number int32) []discoveryv1.EndpointPort {
	return []discoveryv1.EndpointPort{{Name: new(""), Port: &number, Protocol: new(corev1.ProtocolTCP)}}
}

// add adds pods, and says whether all of them are there.
func (s *standIns) add(service *corev1.Service, pods []*corev1.Pod) bool {
	known := map[string]int32{} // the sets, by the numbers of their ports
	var numbers []byte
	left := endpoints.MostPorts
	s.whole = true
	for _, p := range pods {
		copied := *p
		copied.Spec.InitContainers, copied.Spec.Containers = nil, nil
		var has bool
		if numbers, has = endpoints.Numbers(service, p, numbers[:0]); has {
			n, is := known[string(numbers)]
			if !is {
				if left < len(service.Spec.Ports) {
					s.whole = false
					continue
				}
				left -= len(service.Spec.Ports)
				n = s.number(portsOf(service, numbers))
				known[string(numbers)] = n
			}
			copied.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{Name: inPlaceOf, ContainerPort: n, Protocol: corev1.ProtocolTCP}}}}
		}
		s.pods = append(s.pods, &copied)
	}
	return s.whole
}

func portsOf(service *corev1.Service, numbers []byte) []discoveryv1.EndpointPort {
	all := []discoveryv1.EndpointPort{}
	for i := range service.Spec.Ports {
		if p := &service.Spec.Ports[i]; endpoints.Number(numbers, i) != 0 {
			all = append(all, discoveryv1.EndpointPort{
				Name: &p.Name, Port: new(endpoints.Number(numbers, i)), Protocol: &p.Protocol, AppProtocol: p.AppProtocol,
			})
		}
	}
	return all
}

// restoring is a client that writes slices with the ports for which numbers stand in.
type restoring struct {
	kubernetes.Interface
	mu sync.Mutex
	of map[cache.ObjectName]*portSets // of the services that are looked at
}

// begin has what is written for a service have its ports, until the function is called that is returned.
func (r *restoring) begin(key cache.ObjectName, sets *portSets) (end func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of[key] = sets
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.of, key)
	}
}

// DiscoveryV1 implements [kubernetes.Interface].
func (r *restoring) DiscoveryV1() typeddiscoveryv1.DiscoveryV1Interface {
	return restoringGroup{r.Interface.DiscoveryV1(), r}
}

type restoringGroup struct {
	typeddiscoveryv1.DiscoveryV1Interface
	restoring *restoring
}

// EndpointSlices implements [typeddiscoveryv1.DiscoveryV1Interface].
func (g restoringGroup) EndpointSlices(namespace string) typeddiscoveryv1.EndpointSliceInterface {
	return restoringSlices{g.DiscoveryV1Interface.EndpointSlices(namespace), g.restoring}
}

type restoringSlices struct {
	typeddiscoveryv1.EndpointSliceInterface
	restoring *restoring
}

// Create implements [typeddiscoveryv1.EndpointSliceInterface].
func (s restoringSlices) Create(ctx context.Context, slice *discoveryv1.EndpointSlice, o metav1.CreateOptions) (*discoveryv1.EndpointSlice, error) {
	whole, err := s.restoring.restored(slice)
	if err != nil {
		return nil, err
	}
	return s.EndpointSliceInterface.Create(ctx, whole, o)
}

// Update implements [typeddiscoveryv1.EndpointSliceInterface].
func (s restoringSlices) Update(ctx context.Context, slice *discoveryv1.EndpointSlice, o metav1.UpdateOptions) (*discoveryv1.EndpointSlice, error) {
	whole, err := s.restoring.restored(slice)
	if err != nil {
		return nil, err
	}
	return s.EndpointSliceInterface.Update(ctx, whole, o)
}

func (r *restoring) restored(slice *discoveryv1.EndpointSlice) (*discoveryv1.EndpointSlice, error) {
	if len(slice.Ports) == 0 {
		return slice, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	sets := r.of[cache.ObjectName{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}]
	n := slice.Ports[0].Port
	if sets != nil && len(slice.Ports) == 1 && n != nil {
		if ports, is := sets.Set(int(*n)); is {
			whole := *slice
			whole.Ports = ports
			return &whole, nil
		}
	}
	return nil, fmt.Errorf("write slice %s/%s: nobody knows its ports", slice.Namespace, slice.Name)
}
