// Package endpoints keeps the Endpoints object of each service that selects pods, for who does not read slices yet.
package endpoints

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
	sliceutil "k8s.io/endpointslice/util"

	"github.com/berth-node/berth/control/controller"
)

const (
	workers = 5
	// managedBy is the label by which an object is known to be this controller's, by its name.
	managedBy = "endpoints.kubernetes.io/managed-by"
	manager   = "endpoint-controller"
	// capacity is how many addresses an object has at most.
	capacity  = 1000
	truncated = "truncated"
)

// Deps are what the controller is made of.
type Deps struct {
	Client    kubernetes.Interface
	Pods      coreinformers.PodInformer
	Services  coreinformers.ServiceInformer
	Endpoints coreinformers.EndpointsInformer
	Events    record.EventRecorder
	Log       *slog.Logger
}

type keeper struct {
	client    kubernetes.Interface
	services  corelisters.ServiceLister
	pods      cache.Indexer
	endpoints corelisters.EndpointsLister
	events    record.EventRecorder
	times     *sliceutil.TriggerTimeTracker

	mu sync.Mutex
	// replaced are the versions of objects that this controller has written over: a cache that has one is behind.
	replaced map[cache.ObjectName]string
	// made are the services whose object this process has seen or made: those of no service are somebody else's.
	made map[cache.ObjectName]bool
}

// New makes the controller.
func New(d Deps) (controller.Controller, error) {
	if err := controller.IndexByLabel(d.Pods.Informer()); err != nil {
		return nil, err
	}
	services, err := controller.NewServices(d.Services.Informer())
	if err != nil {
		return nil, err
	}
	k := &keeper{
		client: d.Client, services: d.Services.Lister(), pods: d.Pods.Informer().GetIndexer(), endpoints: d.Endpoints.Lister(), events: d.Events,
		times: sliceutil.NewTriggerTimeTracker(), replaced: map[cache.ObjectName]string{}, made: map[cache.ObjectName]bool{},
	}
	return controller.NewLoop(d.Log, workers, k.sync).
		WatchChanges(d.Endpoints.Informer(), k.ofEndpoints).
		Watch(d.Services.Informer(), k.ofService).
		WatchPaced(d.Pods.Informer(), services.Of), nil
}

func (k *keeper) ofService(o any) []cache.ObjectName {
	s, ok := o.(*corev1.Service)
	if !ok {
		return nil
	}
	key := cache.MetaObjectToName(s)
	k.mu.Lock()
	k.made[key] = true // when the service goes, its endpoints do
	k.mu.Unlock()
	return []cache.ObjectName{key}
}

// ofEndpoints is an object that is gone, or that there is at the start: its service may have ended while nobody looked.
func (k *keeper) ofEndpoints(before, after any) []cache.ObjectName {
	if before != nil && after != nil {
		return nil
	}
	e, ok := before.(*corev1.Endpoints)
	if after != nil {
		e, ok = after.(*corev1.Endpoints)
	}
	if !ok {
		return nil
	}
	return []cache.ObjectName{cache.MetaObjectToName(e)}
}

func (k *keeper) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	service, err := k.services.Services(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, k.remove(ctx, key)
	}
	if err != nil {
		return 0, fmt.Errorf("find service %s: %w", key, err)
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName || service.Spec.Selector == nil {
		return 0, nil // they are whose who makes the service
	}
	pods := controller.PodsSelected(k.pods, key.Namespace, labels.SelectorFromValidatedSet(service.Spec.Selector))
	since := k.times.ComputeEndpointLastChangeTriggerTime(key.Namespace, service, pods)
	has, err := k.endpoints.Endpoints(key.Namespace).Get(key.Name)
	switch {
	case apierrors.IsNotFound(err):
		has = &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	case err != nil:
		return 0, fmt.Errorf("find endpoints %s: %w", key, err)
	case k.behind(key, has):
		return 0, fmt.Errorf("find endpoints %s: what was written is not seen: %w", key, controller.ErrWait)
	}
	all, whole := subsetsOf(service, pods)
	subsets := Repack(all)
	over := limit(subsets, capacity) || !whole
	want := has.DeepCopy()
	want.Subsets, want.Labels = subsets, labelsOf(service)
	annotate(want, since, over)
	if has.ResourceVersion != "" && same(has, want) {
		return 0, nil
	}
	return 0, k.write(ctx, key, has, want)
}

// remove removes the object of a service that is gone. What never was a service's is left alone, as the record of a
// leader election: other programs keep such objects.
func (k *keeper) remove(ctx context.Context, key cache.ObjectName) error {
	k.times.DeleteService(key.Namespace, key.Name)
	has, err := k.endpoints.Endpoints(key.Namespace).Get(key.Name)
	k.mu.Lock()
	delete(k.replaced, key)
	mine := k.made[key]
	k.mu.Unlock()
	if err == nil && (mine || has.Labels[managedBy] == manager) && has.Annotations[resourcelock.LeaderElectionRecordAnnotationKey] == "" {
		err = k.client.CoreV1().Endpoints(key.Namespace).Delete(ctx, key.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &has.UID}})
	}
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("remove endpoints %s: %w", key, err)
	}
	k.mu.Lock()
	delete(k.made, key)
	k.mu.Unlock()
	return nil
}

// behind says whether the cache has what this controller has written over.
func (k *keeper) behind(key cache.ObjectName, has *corev1.Endpoints) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.replaced[key] == has.ResourceVersion {
		return true
	}
	delete(k.replaced, key)
	return false
}

func (k *keeper) write(ctx context.Context, key cache.ObjectName, has, want *corev1.Endpoints) error {
	all := k.client.CoreV1().Endpoints(key.Namespace)
	if has.ResourceVersion == "" {
		_, err := all.Create(ctx, want, metav1.CreateOptions{})
		if err != nil && controller.Ended(err) {
			return nil
		}
		if err != nil {
			// The namespace and the name of it are enough for an event.
			k.events.Eventf(want, corev1.EventTypeWarning, "FailedToCreateEndpoint", "Failed to create endpoint for service %s: %v", key, err)
			return fmt.Errorf("make endpoints %s: %w", key, err)
		}
		return nil
	}
	got, err := all.Update(ctx, want, metav1.UpdateOptions{})
	if err != nil {
		if !apierrors.IsConflict(err) {
			k.events.Eventf(want, corev1.EventTypeWarning, "FailedToUpdateEndpoint", "Failed to update endpoint %s: %v", key, err)
		}
		return fmt.Errorf("write endpoints %s: %w", key, err)
	}
	if got.ResourceVersion != has.ResourceVersion {
		k.mu.Lock()
		k.replaced[key] = has.ResourceVersion
		k.mu.Unlock()
	}
	return nil
}

// labelsOf are the labels of a service's endpoints.
func labelsOf(s *corev1.Service) map[string]string {
	all := map[string]string{}
	maps.Copy(all, s.Labels)
	delete(all, corev1.IsHeadlessService)
	if s.Spec.ClusterIP == "" || s.Spec.ClusterIP == corev1.ClusterIPNone {
		all[corev1.IsHeadlessService] = ""
	}
	all[managedBy] = manager
	return all
}

func annotate(e *corev1.Endpoints, since time.Time, over bool) {
	if e.Annotations == nil {
		e.Annotations = map[string]string{}
	}
	if since.IsZero() {
		delete(e.Annotations, corev1.EndpointsLastChangeTriggerTime)
	} else {
		e.Annotations[corev1.EndpointsLastChangeTriggerTime] = since.UTC().Format(time.RFC3339Nano)
	}
	if over {
		e.Annotations[corev1.EndpointsOverCapacity] = truncated
	} else {
		delete(e.Annotations, corev1.EndpointsOverCapacity)
	}
}

// same says whether two objects tell the same. When it changed last is told of what has changed alone.
func same(a, b *corev1.Endpoints) bool {
	return equality.Semantic.DeepEqual(Repack(a.Subsets), b.Subsets) && maps.Equal(a.Labels, b.Labels) &&
		a.Annotations[corev1.EndpointsOverCapacity] == b.Annotations[corev1.EndpointsOverCapacity]
}
