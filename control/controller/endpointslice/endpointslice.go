// Package endpointslice keeps the slices of a service's endpoints: which pods it has, and which of them are ready.
package endpointslice

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	discoveryinformers "k8s.io/client-go/informers/discovery/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/endpointslice"
	"k8s.io/endpointslice/topologycache"
	sliceutil "k8s.io/endpointslice/util"
	"k8s.io/klog/v2"

	"github.com/berth-node/berth/control/controller"
	"github.com/berth-node/berth/control/controller/endpoints"
)

const (
	workers = 5
	// perSlice is how many endpoints a slice has at most.
	perSlice = 100
	// manager is by which label slices are known to be this controller's.
	manager = "endpointslice-controller.k8s.io"
	// patience is how long what was written may not be seen: a slice that was made and deleted before a watch has told
	// of either never is.
	patience = 30 * time.Second
)

// Deps are what the controller is made of.
type Deps struct {
	Client   kubernetes.Interface
	Core     coreinformers.Interface // pods and nodes
	Services coreinformers.ServiceInformer
	Slices   discoveryinformers.EndpointSliceInformer
	Events   record.EventRecorder
	Log      *slog.Logger
}

type keeper struct {
	client     *restoring
	events     record.EventRecorder
	services   corelisters.ServiceLister
	pods       cache.Indexer
	nodes      corelisters.NodeLister
	slices     cache.Indexer
	reconciler *endpointslice.Reconciler
	written    *sliceutil.EndpointSliceTracker
	times      *sliceutil.TriggerTimeTracker
	topology   *topologycache.TopologyCache
	now        func() time.Time

	mu    sync.Mutex
	stale map[cache.ObjectName]time.Time // since when what was written of a service's slices is not seen
	// waiting are the services with pods whose nodes are not known yet.
	waiting map[cache.ObjectName]bool
}

// New makes the controller.
func New(d Deps) (controller.Controller, error) {
	if err := controller.IndexByService(d.Slices.Informer()); err != nil {
		return nil, err
	}
	if err := controller.IndexByLabel(d.Core.Pods().Informer()); err != nil {
		return nil, err
	}
	services, err := controller.NewServices(d.Services.Informer())
	if err != nil {
		return nil, err
	}
	k := newKeeper(d)
	// Nodes are known before pods are: where the node of a pod is not, neither is its zone.
	return controller.NewLoop(d.Log, workers, k.sync).
		WatchChanges(d.Core.Nodes().Informer(), k.ofNode).
		WatchChanges(d.Slices.Informer(), k.ofSlice).
		Watch(d.Services.Informer(), ofService).
		WatchPaced(d.Core.Pods().Informer(), services.Of), nil
}

func newKeeper(d Deps) *keeper {
	k := &keeper{
		client: &restoring{Interface: d.Client, of: map[cache.ObjectName]*portSets{}}, events: d.Events,
		services: d.Services.Lister(), pods: d.Core.Pods().Informer().GetIndexer(), nodes: d.Core.Nodes().Lister(), slices: d.Slices.Informer().GetIndexer(),
		written: sliceutil.NewEndpointSliceTracker(), times: sliceutil.NewTriggerTimeTracker(), topology: topologycache.NewTopologyCache(),
		now: time.Now, stale: map[cache.ObjectName]time.Time{}, waiting: map[cache.ObjectName]bool{},
	}
	k.reconciler = endpointslice.NewReconciler(k.client, k.nodes, perSlice, k.written, k.topology, d.Events, manager,
		endpointslice.WithPreferSameTrafficDistributionEnabled(true))
	return k
}

func ofService(o any) []cache.ObjectName {
	if s, ok := o.(*corev1.Service); ok {
		return []cache.ObjectName{cache.MetaObjectToName(s)}
	}
	return nil
}

func (k *keeper) sync(_ context.Context, key cache.ObjectName) (time.Duration, error) {
	service, err := k.services.Services(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		k.forget(key) // its slices are garbage
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find service %s: %w", key, err)
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName || service.Spec.Selector == nil {
		return 0, nil
	}
	pods := controller.PodsSelected(k.pods, key.Namespace, labels.SelectorFromValidatedSet(service.Spec.Selector))
	has := k.slicesOf(key)
	if k.isStale(key, service, has) {
		return 0, fmt.Errorf("list slices of service %s: what was written is not seen: %w", key, controller.ErrWait)
	}
	k.note(key, pods)
	since := k.times.ComputeEndpointLastChangeTriggerTime(key.Namespace, service, pods)
	return 0, k.write(key, service, pods, has, since)
}

// write brings the slices of a service to what its pods are.
func (k *keeper) write(key cache.ObjectName, service *corev1.Service, pods []*corev1.Pod, has []*discoveryv1.EndpointSlice, since time.Time) error {
	in := newStandIns(service, pods, has)
	if !in.whole {
		k.events.Eventf(service, corev1.EventTypeWarning, "TooManyPorts",
			"Of pods with ports of their own those are endpoints that have %d together, the first by their names", endpoints.MostPorts)
	}
	defer k.client.begin(key, in.sets)()
	// The library logs what it returns, too, and what is nobody's concern.
	if err := k.reconciler.Reconcile(klog.Logger{}, in.service, in.pods, in.slices, since); err != nil {
		return fmt.Errorf("write slices of service %s: %w", key, err)
	}
	return nil
}

// slicesOf are the slices of a service that are this controller's.
func (k *keeper) slicesOf(key cache.ObjectName) []*discoveryv1.EndpointSlice {
	return slices.DeleteFunc(controller.SlicesOf(k.slices, key, manager), func(s *discoveryv1.EndpointSlice) bool {
		return s.DeletionTimestamp != nil
	})
}

// isStale says whether the cache is behind what this controller has written.
func (k *keeper) isStale(key cache.ObjectName, service *corev1.Service, has []*discoveryv1.EndpointSlice) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.written.StaleSlices(service, has) {
		delete(k.stale, key)
		return false
	}
	since, known := k.stale[key]
	if !known {
		since = k.now()
		k.stale[key] = since
	}
	if k.now().Sub(since) < patience {
		return true
	}
	delete(k.stale, key)
	k.written.DeleteService(key.Namespace, key.Name)
	return false
}

// note keeps in mind whether a service has pods whose nodes are not known.
func (k *keeper) note(key cache.ObjectName, pods []*corev1.Pod) {
	missing := false
	for _, p := range pods {
		if p.Spec.NodeName != "" {
			_, err := k.nodes.Get(p.Spec.NodeName)
			missing = missing || apierrors.IsNotFound(err)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if missing {
		k.waiting[key] = true
	} else {
		delete(k.waiting, key)
	}
}

func (k *keeper) forget(key cache.ObjectName) {
	k.written.DeleteService(key.Namespace, key.Name)
	k.times.DeleteService(key.Namespace, key.Name)
	k.reconciler.DeleteService(key.Namespace, key.Name)
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.stale, key)
	delete(k.waiting, key)
}
