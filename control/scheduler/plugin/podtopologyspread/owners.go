package podtopologyspread

import (
	"maps"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/berth-node/berth/control/controller"
)

// mostRead is how many selectors of controllers are kept as they were read.
const mostRead = 500

// owners know which pods belong together: those of a service, and those that one controller keeps. There may be 10,000
// services in a namespace, and each attempt to schedule a pod asks which of them are the pod's.
type owners struct {
	services    controller.Selecting[*corev1.Service]
	controllers corelisters.ReplicationControllerLister
	replicas    appslisters.ReplicaSetLister
	sets        appslisters.StatefulSetLister
	read        requirements
}

func newOwners(f informers.SharedInformerFactory) (*owners, error) {
	services, err := controller.SelectingServices(f.Core().V1().Services().Informer())
	return &owners{
		services: services, controllers: f.Core().V1().ReplicationControllers().Lister(),
		replicas: f.Apps().V1().ReplicaSets().Lister(), sets: f.Apps().V1().StatefulSets().Lister(),
	}, err
}

// selector means the pods that belong with this one; it is empty if nobody says so.
func (o *owners) selector(pod *corev1.Pod) labels.Selector {
	set := labels.Set{}
	for s := range o.services.All(pod.Namespace, pod.Labels) {
		maps.Copy(set, s.Spec.Selector)
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return set.AsSelector()
	}
	var more labels.Requirements
	switch {
	case owner.APIVersion == corev1.SchemeGroupVersion.String() && owner.Kind == "ReplicationController":
		if c, err := o.controllers.ReplicationControllers(pod.Namespace).Get(owner.Name); err == nil {
			maps.Copy(set, c.Spec.Selector)
		}
	case owner.APIVersion == appsv1.SchemeGroupVersion.String() && owner.Kind == "ReplicaSet":
		if r, err := o.replicas.ReplicaSets(pod.Namespace).Get(owner.Name); err == nil {
			more = o.read.of(r, r.Spec.Selector)
		}
	case owner.APIVersion == appsv1.SchemeGroupVersion.String() && owner.Kind == "StatefulSet":
		if s, err := o.sets.StatefulSets(pod.Namespace).Get(owner.Name); err == nil {
			more = o.read.of(s, s.Spec.Selector)
		}
	}
	return set.AsSelector().Add(more...)
}

// requirements are those of controllers' selectors, by the controllers as they are specified: a selector of as many
// values as fit into an object takes longer to read than a pod to schedule, and its controller may have a thousand
// pods.
type requirements struct {
	mu  sync.Mutex
	all map[specified]labels.Requirements
}

// specified is an object as its spec is.
type specified struct {
	uid        types.UID
	generation int64
}

func (r *requirements) of(o metav1.Object, s *metav1.LabelSelector) labels.Requirements {
	key := specified{o.GetUID(), o.GetGeneration()}
	r.mu.Lock()
	known, is := r.all[key]
	r.mu.Unlock()
	if is {
		return known
	}
	var wanted labels.Requirements
	if read, err := metav1.LabelSelectorAsSelector(s); err == nil {
		wanted, _ = read.Requirements()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil || len(r.all) >= mostRead {
		r.all = map[specified]labels.Requirements{}
	}
	r.all[key] = wanted
	return wanted
}
