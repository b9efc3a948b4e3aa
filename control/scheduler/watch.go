package scheduler

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/cluster"
	"github.com/berth-node/berth/control/scheduler/queue"
)

// watches are the informers that the scheduler hears of changes by.
type watches struct {
	all        []watched
	registered []registration
}

type watched struct {
	informer cache.SharedIndexInformer
	handler  func(context.Context, *Scheduler) cache.ResourceEventHandler
}

type registration struct {
	informer cache.SharedIndexInformer
	handle   cache.ResourceEventHandlerRegistration
}

// watch notes what has to be watched: pods and nodes, and all that plugins want to hear of.
func (s *Scheduler) watch(o Options, hints map[string][]queue.Hint) error {
	f := o.Informers
	s.watches.all = []watched{
		{f.Core().V1().Nodes().Informer(), nodeHandler},
		{f.Core().V1().Pods().Informer(), podHandler},
	}
	seen := map[fwk.EventResource]bool{}
	for name, list := range hints {
		for _, h := range list {
			r := h.Event.Resource
			if seen[r] {
				continue
			}
			seen[r] = true
			i, known := informerOf(f, r)
			if r == fwk.PodGroup && o.PodGroups {
				i = f.Scheduling().V1beta1().PodGroups().Informer()
			}
			if !known {
				return fmt.Errorf("make profile %q: plugin %q wants to hear of %q, which is not watched", name, h.Plugin, r)
			}
			if i != nil {
				s.watches.all = append(s.watches.all, watched{i, objectHandler(r)})
			}
			if r == fwk.ResourceSlice {
				// A rule that taints devices changes what slices offer.
				s.watches.all = append(s.watches.all, watched{f.Resource().V1().DeviceTaintRules().Informer(), ruleHandler})
			}
		}
	}
	return nil
}

// informerOf is the informer of a kind; nil: it is watched in any case, or nothing is to be.
func informerOf(f informers.SharedInformerFactory, r fwk.EventResource) (cache.SharedIndexInformer, bool) {
	switch r {
	case fwk.PersistentVolume:
		return f.Core().V1().PersistentVolumes().Informer(), true
	case fwk.PersistentVolumeClaim:
		return f.Core().V1().PersistentVolumeClaims().Informer(), true
	case fwk.CSINode:
		return f.Storage().V1().CSINodes().Informer(), true
	case fwk.CSIDriver:
		return f.Storage().V1().CSIDrivers().Informer(), true
	case fwk.VolumeAttachment:
		return f.Storage().V1().VolumeAttachments().Informer(), true
	case fwk.CSIStorageCapacity:
		return f.Storage().V1().CSIStorageCapacities().Informer(), true
	case fwk.StorageClass:
		return f.Storage().V1().StorageClasses().Informer(), true
	case fwk.ResourceClaim:
		return f.Resource().V1().ResourceClaims().Informer(), true
	case fwk.ResourceSlice:
		return f.Resource().V1().ResourceSlices().Informer(), true
	case fwk.DeviceClass:
		return f.Resource().V1().DeviceClasses().Informer(), true
	case fwk.Pod, fwk.AssignedPod, fwk.UnscheduledPod, fwk.TargetPod, fwk.Node, fwk.WildCard:
		return nil, true
	case fwk.PodGroup, fwk.CompositePodGroup:
		return nil, true // only where the API server has any
	}
	return nil, false
}

// start hears of changes, and waits until all that is there now has been heard of.
func (w *watches) start(ctx context.Context, s *Scheduler) bool {
	var synced []cache.InformerSynced
	for _, one := range w.all {
		r, err := one.informer.AddEventHandlerWithResyncPeriod(one.handler(ctx, s), 0)
		if err != nil {
			s.log.Error("scheduler does not run", "error", err)
			return false
		}
		w.registered = append(w.registered, registration{one.informer, r})
		synced = append(synced, r.HasSynced)
	}
	return cache.WaitForCacheSync(ctx.Done(), synced...)
}

func (w *watches) stop() {
	for _, r := range w.registered {
		_ = r.informer.RemoveEventHandler(r.handle) // of an informer that runs or has ended
	}
}

// handler calls f with what was and what is, whichever way the informer says it.
func handler[T any](f func(was, is *T)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { f(nil, as[T](o)) },
		UpdateFunc: func(was, is any) { f(as[T](was), as[T](is)) },
		DeleteFunc: func(o any) { f(as[T](o), nil) },
	}
}

func as[T any](o any) *T {
	if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	t, _ := o.(*T)
	return t
}

// objectHandler is of a kind that only plugins look at.
func objectHandler(r fwk.EventResource) func(context.Context, *Scheduler) cache.ResourceEventHandler {
	return func(ctx context.Context, s *Scheduler) cache.ResourceEventHandler {
		happened := func(action fwk.ActionType, was, is any) {
			if group, ok := is.(*schedulingv1beta1.PodGroup); ok {
				gangs{s}.reached(cache.MetaObjectToName(group))
			}
			guarded(s.log, string(r), func() {
				s.queue.Happened(ctx, fwk.ClusterEvent{Resource: r, ActionType: action}, was, is)
			})
		}
		return cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { happened(fwk.Add, nil, o) },
			UpdateFunc: func(was, is any) { happened(fwk.Update, was, is) },
			DeleteFunc: func(o any) {
				if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
					o = gone.Obj
				}
				happened(fwk.Delete, o, nil)
			},
		}
	}
}

// ruleHandler is of rules that taint devices. Which slices they are about is left to who looks at them.
func ruleHandler(ctx context.Context, s *Scheduler) cache.ResourceEventHandler {
	happened := func() {
		s.queue.Happened(ctx, fwk.ClusterEvent{Resource: fwk.ResourceSlice, ActionType: fwk.Update}, nil, nil)
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { happened() }, UpdateFunc: func(any, any) { happened() }, DeleteFunc: func(any) { happened() },
	}
}

func nodeHandler(ctx context.Context, s *Scheduler) cache.ResourceEventHandler {
	return handler(func(was, is *corev1.Node) {
		action := fwk.Add
		switch {
		case is == nil && was == nil:
			return
		case is == nil:
			s.cache.DeleteNode(was.Name)
			s.queue.Happened(ctx, fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Delete}, was, nil)
			return
		case was != nil:
			action = nodeChanges(was, is)
		}
		guarded(s.log, "Node", func() {
			s.cache.SetNode(is)
			if action != fwk.None {
				var before any
				if was != nil {
					before = was
				}
				s.queue.Happened(ctx, fwk.ClusterEvent{Resource: fwk.Node, ActionType: action}, before, is)
			}
		})
	})
}

func podHandler(ctx context.Context, s *Scheduler) cache.ResourceEventHandler {
	changed := func(was, is *corev1.Pod) {
		guarded(s.log, "Pod", func() { s.podChanged(ctx, was, is) })
	}
	return handler(func(was, is *corev1.Pod) {
		if was != nil && is != nil && was.UID != is.UID {
			changed(was, nil) // the end of the one and the begin of the other were seen as one
			was = nil
		}
		changed(was, is)
	})
}

// placed says whether a pod takes something of a node.
func placed(pod *corev1.Pod) bool {
	return pod != nil && pod.Spec.NodeName != "" && !cluster.Ended(pod)
}

func (s *Scheduler) podChanged(ctx context.Context, was, is *corev1.Pod) {
	tell := func(r fwk.EventResource, action fwk.ActionType, before, after *corev1.Pod) {
		var b, a any
		if before != nil {
			b = before
		}
		if after != nil {
			a = after
		}
		s.queue.Happened(ctx, fwk.ClusterEvent{Resource: r, ActionType: action}, b, a)
	}
	if is != nil {
		s.groups.Set(is)
	} else if was != nil {
		s.groups.Delete(was)
	}
	switch {
	case was == nil && is == nil:
	case is == nil || cluster.Ended(is):
		s.podGone(was, is, tell)
	case placed(is):
		s.cache.SetPod(is)
		if key, ok := cluster.Group(is); ok {
			gangs{s}.reached(key)
		}
		if placed(was) {
			if action := podChanges(was, is); action != fwk.None {
				tell(fwk.AssignedPod, action, was, is)
			}
			return
		}
		s.queue.Delete(is)
		tell(fwk.AssignedPod, fwk.Add, nil, is)
		if was != nil {
			tell(fwk.UnscheduledPod, fwk.Delete, was, nil)
		}
	case !s.mine(is):
	case was == nil:
		s.queue.Add(ctx, is)
		tell(fwk.UnscheduledPod, fwk.Add, nil, is)
	case s.cache.Assumed(is.UID):
	default:
		action := podChanges(was, is)
		var events []fwk.ClusterEvent
		if action != fwk.None {
			events = []fwk.ClusterEvent{{Resource: fwk.TargetPod, ActionType: action}}
		}
		s.queue.Update(ctx, was, is, events)
		if action != fwk.None {
			tell(fwk.UnscheduledPod, action, was, is)
		}
	}
}

// podGone is told of a pod that takes nothing of its node any more, and that waits for none.
func (s *Scheduler) podGone(was, is *corev1.Pod, tell func(fwk.EventResource, fwk.ActionType, *corev1.Pod, *corev1.Pod)) {
	pod := was
	if pod == nil {
		pod = is
	}
	held := s.cache.Pod(pod.UID)
	s.cache.DeletePod(pod.UID)
	s.queue.Delete(pod)
	s.shared.Waiting.Reject(pod.UID, "removed")
	switch {
	case held != nil:
		tell(fwk.AssignedPod, fwk.Delete, held, nil)
	case pod.Spec.NodeName == "":
		tell(fwk.UnscheduledPod, fwk.Delete, pod, nil)
	}
}
