package replicaset

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	appsinformers "k8s.io/client-go/informers/apps/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-node/berth/control/controller/owned"
)

// kind is one of the two kinds of objects that keep so many pods. What both have is a ReplicaSet's.
type kind interface {
	gvk() schema.GroupVersionKind
	informer() cache.SharedIndexInformer
	get(key cache.ObjectName) (*appsv1.ReplicaSet, error)
	adopting() (owned.Adopting, error)
	fresh(ctx context.Context, key cache.ObjectName) (*appsv1.ReplicaSet, error)
	// write writes the status, and returns the object as the API has it since.
	write(ctx context.Context, o *appsv1.ReplicaSet) (metav1.Object, error)
	// object is what events are told of.
	object(o *appsv1.ReplicaSet) owned.Owner
}

type sets struct {
	client kubernetes.Interface
	from   appsinformers.ReplicaSetInformer
	lister appslisters.ReplicaSetLister
}

func (s sets) gvk() schema.GroupVersionKind        { return appsv1.SchemeGroupVersion.WithKind("ReplicaSet") }
func (s sets) informer() cache.SharedIndexInformer { return s.from.Informer() }

func (s sets) get(key cache.ObjectName) (*appsv1.ReplicaSet, error) {
	return s.lister.ReplicaSets(key.Namespace).Get(key.Name)
}

func (s sets) adopting() (owned.Adopting, error) {
	return owned.NewAdopting(s.informer(), func(r *appsv1.ReplicaSet) *metav1.LabelSelector { return r.Spec.Selector })
}

func (s sets) fresh(ctx context.Context, key cache.ObjectName) (*appsv1.ReplicaSet, error) {
	return s.client.AppsV1().ReplicaSets(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
}

func (s sets) write(ctx context.Context, o *appsv1.ReplicaSet) (metav1.Object, error) {
	return s.client.AppsV1().ReplicaSets(o.Namespace).UpdateStatus(ctx, o, metav1.UpdateOptions{})
}

func (s sets) object(o *appsv1.ReplicaSet) owned.Owner { return o }

type controllers struct {
	client kubernetes.Interface
	from   coreinformers.ReplicationControllerInformer
	lister corelisters.ReplicationControllerLister
}

func (c controllers) gvk() schema.GroupVersionKind {
	return corev1.SchemeGroupVersion.WithKind("ReplicationController")
}
func (c controllers) informer() cache.SharedIndexInformer { return c.from.Informer() }

func (c controllers) get(key cache.ObjectName) (*appsv1.ReplicaSet, error) {
	o, err := c.lister.ReplicationControllers(key.Namespace).Get(key.Name)
	if err != nil {
		return nil, err
	}
	return setOf(o), nil
}

func (c controllers) adopting() (owned.Adopting, error) {
	return owned.NewAdopting(c.informer(), func(r *corev1.ReplicationController) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: r.Spec.Selector}
	})
}

func (c controllers) fresh(ctx context.Context, key cache.ObjectName) (*appsv1.ReplicaSet, error) {
	o, err := c.client.CoreV1().ReplicationControllers(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return setOf(o), nil
}

func (c controllers) write(ctx context.Context, s *appsv1.ReplicaSet) (metav1.Object, error) {
	o := controllerOf(s)
	return c.client.CoreV1().ReplicationControllers(o.Namespace).UpdateStatus(ctx, o, metav1.UpdateOptions{})
}

func (c controllers) object(s *appsv1.ReplicaSet) owned.Owner {
	// Events are of the object's own kind.
	o := &corev1.ReplicationController{ObjectMeta: s.ObjectMeta}
	return o
}

// setOf is a replication controller as a ReplicaSet. Both share what they point to.
func setOf(o *corev1.ReplicationController) *appsv1.ReplicaSet {
	s := &appsv1.ReplicaSet{ObjectMeta: o.ObjectMeta}
	s.Spec = appsv1.ReplicaSetSpec{
		Replicas: o.Spec.Replicas, MinReadySeconds: o.Spec.MinReadySeconds, Selector: &metav1.LabelSelector{MatchLabels: o.Spec.Selector},
	}
	if o.Spec.Template != nil {
		s.Spec.Template = *o.Spec.Template
	}
	s.Status = appsv1.ReplicaSetStatus{
		Replicas: o.Status.Replicas, FullyLabeledReplicas: o.Status.FullyLabeledReplicas, ReadyReplicas: o.Status.ReadyReplicas,
		AvailableReplicas: o.Status.AvailableReplicas, ObservedGeneration: o.Status.ObservedGeneration,
	}
	for _, c := range o.Status.Conditions {
		s.Status.Conditions = append(s.Status.Conditions, appsv1.ReplicaSetCondition{
			Type: appsv1.ReplicaSetConditionType(c.Type), Status: c.Status, LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message,
		})
	}
	return s
}

// controllerOf is a replication controller to be written with its status.
func controllerOf(s *appsv1.ReplicaSet) *corev1.ReplicationController {
	o := &corev1.ReplicationController{ObjectMeta: s.ObjectMeta}
	o.Spec = corev1.ReplicationControllerSpec{
		Replicas: s.Spec.Replicas, MinReadySeconds: s.Spec.MinReadySeconds, Selector: s.Spec.Selector.MatchLabels, Template: &s.Spec.Template,
	}
	o.Status = corev1.ReplicationControllerStatus{
		Replicas: s.Status.Replicas, FullyLabeledReplicas: s.Status.FullyLabeledReplicas, ReadyReplicas: s.Status.ReadyReplicas,
		AvailableReplicas: s.Status.AvailableReplicas, ObservedGeneration: s.Status.ObservedGeneration,
	}
	for _, c := range s.Status.Conditions {
		o.Status.Conditions = append(o.Status.Conditions, corev1.ReplicationControllerCondition{
			Type: corev1.ReplicationControllerConditionType(c.Type), Status: c.Status, LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message,
		})
	}
	return o
}

func notFound(k kind, key cache.ObjectName, err error) error {
	return fmt.Errorf("find %s %s: %w", k.gvk().Kind, key, err)
}
