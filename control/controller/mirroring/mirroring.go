// Package mirroring keeps slices of the endpoints that users write themselves, as Endpoints objects, for services that
// select no pods.
package mirroring

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	discoveryinformers "k8s.io/client-go/informers/discovery/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"

	"github.com/berth-node/berth/control/controller"
)

const (
	workers = 5
	// perSubset is how many addresses of a subset are mirrored.
	perSubset = 1000
	// perTurn is how many slices are written for an object until others have their turn: it may have 10,000 subsets,
	// and each of its changes is one of as many slices. It goes on when what was written is seen.
	perTurn = 100
	// manager is by which label slices are known to be this controller's.
	manager = "endpointslicemirroring-controller.k8s.io"
)

// Deps are what the controller is made of.
type Deps struct {
	Client    kubernetes.Interface
	Services  coreinformers.ServiceInformer
	Endpoints coreinformers.EndpointsInformer
	Slices    discoveryinformers.EndpointSliceInformer
	Events    record.EventRecorder
	Log       *slog.Logger
}

type mirror struct {
	client    kubernetes.Interface
	services  corelisters.ServiceLister
	endpoints corelisters.EndpointsLister
	slices    cache.Indexer
	events    record.EventRecorder
}

// New makes the controller.
func New(d Deps) (controller.Controller, error) {
	if err := controller.IndexByService(d.Slices.Informer()); err != nil {
		return nil, err
	}
	m := &mirror{d.Client, d.Services.Lister(), d.Endpoints.Lister(), d.Slices.Informer().GetIndexer(), d.Events}
	return controller.NewLoop(d.Log, workers, m.sync).
		Watch(d.Slices.Informer(), ofSlice).
		Watch(d.Services.Informer(), ofObject).
		Watch(d.Endpoints.Informer(), ofObject), nil
}

func ofObject(o any) []cache.ObjectName {
	m, ok := o.(metav1.Object)
	if !ok {
		return nil
	}
	return []cache.ObjectName{cache.MetaObjectToName(m)}
}

func ofSlice(o any) []cache.ObjectName {
	s, ok := o.(*discoveryv1.EndpointSlice)
	if !ok || s.Labels[discoveryv1.LabelManagedBy] != manager || s.Labels[discoveryv1.LabelServiceName] == "" {
		return nil
	}
	return []cache.ObjectName{{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}}
}

func (m *mirror) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	e, err := m.wanted(key)
	if err != nil {
		return 0, err
	}
	all := controller.SlicesOf(m.slices, key, manager)
	var want []*discoveryv1.EndpointSlice
	if e != nil {
		var left leftOut
		want, left = mirrored(e, perSubset)
		m.tell(e, left)
	}
	return 0, m.apply(ctx, planned(e, all, want).first(perTurn))
}

// wanted are the endpoints that are to be mirrored; nil: none of that name are.
func (m *mirror) wanted(key cache.ObjectName) (*corev1.Endpoints, error) {
	e, err := m.endpoints.Endpoints(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find endpoints %s: %w", key, err)
	}
	if e.DeletionTimestamp != nil || e.Labels[discoveryv1.LabelSkipMirror] == "true" || e.Annotations[resourcelock.LeaderElectionRecordAnnotationKey] != "" {
		return nil, nil
	}
	s, err := m.services.Services(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find service %s: %w", key, err)
	}
	if s.Spec.Selector != nil {
		return nil, nil
	}
	return e, nil
}

func (m *mirror) tell(e *corev1.Endpoints, left leftOut) {
	if left.invalid > 0 {
		m.events.Eventf(e, corev1.EventTypeWarning, "InvalidIPAddress", "Skipped %d invalid IP addresses when mirroring to EndpointSlices", left.invalid)
	}
	if left.many > 0 {
		m.events.Eventf(e, corev1.EventTypeWarning, "TooManyAddressesToMirror",
			"A max of %d addresses can be mirrored to EndpointSlices per Endpoints subset. %d addresses were skipped", perSubset, left.many+left.invalid)
	}
}

// apply does what is planned. A slice that is to be made and is there already is one that the cache does not know yet.
func (m *mirror) apply(ctx context.Context, p plan) error {
	var failed []error
	for _, s := range p.create {
		_, err := m.client.DiscoveryV1().EndpointSlices(s.Namespace).Create(ctx, s, metav1.CreateOptions{})
		if err != nil && !controller.Ended(err) {
			failed = append(failed, fmt.Errorf("make slice %s/%s: %w", s.Namespace, s.Name, err))
		}
	}
	for _, s := range p.update {
		_, err := m.client.DiscoveryV1().EndpointSlices(s.Namespace).Update(ctx, s, metav1.UpdateOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			failed = append(failed, fmt.Errorf("write slice %s/%s: %w", s.Namespace, s.Name, err))
		}
	}
	for _, s := range p.remove {
		err := m.client.DiscoveryV1().EndpointSlices(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &s.UID}})
		if err != nil && !apierrors.IsNotFound(err) {
			failed = append(failed, fmt.Errorf("remove slice %s/%s: %w", s.Namespace, s.Name, err))
		}
	}
	return errors.Join(failed...)
}
