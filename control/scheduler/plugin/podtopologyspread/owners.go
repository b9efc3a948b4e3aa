package podtopologyspread

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// owners know which pods belong together: those of a service, and those that one controller keeps.
type owners struct {
	services    corelisters.ServiceLister
	controllers corelisters.ReplicationControllerLister
	replicas    appslisters.ReplicaSetLister
	sets        appslisters.StatefulSetLister
}

func newOwners(f informers.SharedInformerFactory) *owners {
	return &owners{
		f.Core().V1().Services().Lister(), f.Core().V1().ReplicationControllers().Lister(),
		f.Apps().V1().ReplicaSets().Lister(), f.Apps().V1().StatefulSets().Lister(),
	}
}

// selector means the pods that belong with this one; it is empty if nobody says so.
func (o *owners) selector(pod *corev1.Pod) labels.Selector {
	set := labels.Set{}
	services, err := o.services.Services(pod.Namespace).List(labels.Everything())
	if err == nil {
		for _, s := range services {
			if len(s.Spec.Selector) > 0 && labels.ValidatedSetSelector(s.Spec.Selector).Matches(labels.Set(pod.Labels)) {
				set = labels.Merge(set, s.Spec.Selector)
			}
		}
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return set.AsSelector()
	}
	var more *metav1.LabelSelector
	switch {
	case owner.APIVersion == corev1.SchemeGroupVersion.String() && owner.Kind == "ReplicationController":
		if c, err := o.controllers.ReplicationControllers(pod.Namespace).Get(owner.Name); err == nil {
			set = labels.Merge(set, c.Spec.Selector)
		}
	case owner.APIVersion == appsv1.SchemeGroupVersion.String() && owner.Kind == "ReplicaSet":
		if r, err := o.replicas.ReplicaSets(pod.Namespace).Get(owner.Name); err == nil {
			more = r.Spec.Selector
		}
	case owner.APIVersion == appsv1.SchemeGroupVersion.String() && owner.Kind == "StatefulSet":
		if s, err := o.sets.StatefulSets(pod.Namespace).Get(owner.Name); err == nil {
			more = s.Spec.Selector
		}
	}
	selector := set.AsSelector()
	if parsed, err := metav1.LabelSelectorAsSelector(more); err == nil {
		if r, ok := parsed.Requirements(); ok {
			selector = selector.Add(r...)
		}
	}
	return selector
}
