// Package daemonset keeps a pod on each node that is to have one, as DaemonSets say.
package daemonset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	appsinformers "k8s.io/client-go/informers/apps/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/berth-node/berth/control/controller"
	"github.com/berth-node/berth/control/controller/history"
	"github.com/berth-node/berth/control/controller/owned"
)

const (
	workers = 2
	// burst is how many pods are made or ended before others have their turn.
	burst = 250
	// firstAgain and lastAgain are how soon a pod that has failed is replaced, at first and at most.
	firstAgain = time.Second
	lastAgain  = 15 * time.Minute
)

var kind = appsv1.SchemeGroupVersion.WithKind("DaemonSet")

type keeper struct {
	client  kubernetes.Interface
	sets    appslisters.DaemonSetLister
	nodes   corelisters.NodeLister
	pods    owned.Pods
	index   cache.Indexer // of them
	events  record.EventRecorder
	keep    owned.Keeper
	history history.Keeper
	own     *owned.Writes
	pace    owned.Pace
	backoff *flowcontrol.Backoff
	now     func() time.Time
}

// New makes the controller.
func New(client kubernetes.Interface, apps appsinformers.Interface, core coreinformers.Interface, log *slog.Logger) (controller.Controller, error) {
	pods, err := owned.NewIndex[*corev1.Pod](core.Pods().Informer())
	if err != nil {
		return nil, err
	}
	if err := controller.Index(core.Pods().Informer(), byNode, onNode); err != nil {
		return nil, err
	}
	revisions, err := owned.NewIndex[*appsv1.ControllerRevision](apps.ControllerRevisions().Informer())
	if err != nil {
		return nil, err
	}
	adopting, err := owned.NewAdopting(apps.DaemonSets().Informer(), func(d *appsv1.DaemonSet) *metav1.LabelSelector { return d.Spec.Selector })
	if err != nil {
		return nil, err
	}
	return controller.WithEvents(client, "daemonset-controller", func(events record.EventRecorder) (controller.Controller, error) {
		k := &keeper{
			client: client, sets: apps.DaemonSets().Lister(), nodes: core.Nodes().Lister(), pods: pods, index: core.Pods().Informer().GetIndexer(), events: events, now: time.Now,
			keep: owned.Keeper{Client: client, Events: events, Writes: owned.NewWrites(pods.Cache())},
			history: history.Keeper{
				Client: client, Revisions: revisions, Writes: owned.NewWrites(revisions.Cache()), Kind: kind, Label: appsv1.ControllerRevisionHashLabelKey,
				Prints: history.NewPrints(),
			},
			own: owned.NewWrites(apps.DaemonSets().Informer().GetIndexer()), backoff: flowcontrol.NewBackOff(firstAgain, lastAgain),
		}
		return controller.NewLoop(log, workers, k.sync).
			Watch(apps.DaemonSets().Informer(), owned.Key).
			Watch(apps.ControllerRevisions().Informer(), owned.Keys(kind, adopting)).
			Watch(core.Pods().Informer(), owned.Keys(kind, adopting)).
			WatchChanges(core.Nodes().Informer(), k.ofNode), nil
	})
}

func selector(d *appsv1.DaemonSet) labels.Selector { return owned.Selector(d.Spec.Selector) }

func (k *keeper) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	d, err := k.sets.DaemonSets(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		k.forget(key)
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find daemon set %s: %w", key, err)
	}
	if k.own.Behind(key) || k.history.Writes.Behind(key) {
		return owned.Late, nil
	}
	if d.DeletionTimestamp != nil || d.Spec.Selector == nil || selector(d).Empty() {
		return 0, nil // others end what is its
	}
	pods, err := owned.Claim[*corev1.Pod]{
		Owner: d, Kind: kind, Selector: selector(d), Fresh: k.fresh(d), Patch: k.keep.Patch,
	}.Of(ctx, k.pods.Of(d.UID), k.pods.Orphans(d.Namespace, selector(d)))
	if err != nil {
		return 0, err
	}
	revisions, now, err := k.revisions(ctx, key, d)
	if err != nil {
		return 0, err
	}
	v, lost := k.look(d, pods, now)
	behind := k.keep.Writes.Behind(key)
	var again time.Duration
	var failed error
	if behind {
		again = owned.Late
	} else {
		again, failed = k.act(ctx, d, v, lost)
	}
	if failed == nil {
		failed = k.truncate(ctx, d, pods, revisions, now)
	}
	status := v.count(d, !behind || d.Generation == d.Status.ObservedGeneration)
	left, err := k.say(ctx, key, d, status)
	if apierrors.HasStatusCause(failed, corev1.NamespaceTerminatingCause) {
		failed = nil
	}
	return owned.Soonest(again, v.again, left), errors.Join(failed, err)
}

func (k *keeper) forget(key cache.ObjectName) {
	k.own.Forget(key)
	k.keep.Writes.Forget(key)
	k.history.Forget(key)
	k.pace.Forget(key)
	k.backoff.GC() // of pods that have failed long ago, for sets that may be gone
}

func (k *keeper) fresh(d *appsv1.DaemonSet) func(context.Context) (metav1.Object, error) {
	return func(ctx context.Context) (metav1.Object, error) {
		return k.client.AppsV1().DaemonSets(d.Namespace).Get(ctx, d.Name, metav1.GetOptions{})
	}
}

// revisions are those of before, and the one of now.
func (k *keeper) revisions(ctx context.Context, key cache.ObjectName, d *appsv1.DaemonSet) ([]*appsv1.ControllerRevision, *appsv1.ControllerRevision, error) {
	of := history.Of{Owner: d, Selector: selector(d), Template: &d.Spec.Template, Fresh: k.fresh(d)}
	if c := d.Status.CollisionCount; c != nil {
		of.Collisions = *c
	}
	all, err := k.history.Claim(ctx, of)
	if err != nil {
		return nil, nil, err
	}
	now, err := k.history.Now(ctx, of, all)
	if errors.Is(err, history.ErrCollision) {
		// The next hash is another one.
		s := *d.Status.DeepCopy()
		n := of.Collisions + 1
		s.CollisionCount = &n
		err = errors.Join(err, k.write(ctx, key, d, s))
	}
	return all, now, err
}

// look is each node with its pods, and the pods whose nodes are gone.
func (k *keeper) look(d *appsv1.DaemonSet, pods []*corev1.Pod, now *appsv1.ControllerRevision) (*view, []*corev1.Pod) {
	v := &view{hash: now.Labels[appsv1.ControllerRevisionHashLabelKey], minReady: d.Spec.MinReadySeconds, now: k.now()}
	nodes, err := k.nodes.List(labels.Everything())
	if err != nil {
		return v, nil // a lister of what is in memory does not fail
	}
	on := map[string][]*corev1.Pod{}
	for _, p := range pods {
		on[nodeOf(p)] = append(on[nodeOf(p)], p)
	}
	p := bound(d)
	for _, n := range nodes {
		run, stay := eligible(p, n)
		v.places = append(v.places, place{node: n.Name, run: run, stay: stay, pods: on[n.Name]})
		delete(on, n.Name)
	}
	var lost []*corev1.Pod
	for _, of := range on {
		for _, p := range of {
			// One that is bound is the garbage collector's.
			if p.Spec.NodeName == "" && p.DeletionTimestamp == nil {
				lost = append(lost, p)
			}
		}
	}
	slices.SortFunc(v.places, func(a, b place) int { return strings.Compare(a.node, b.node) })
	return v, lost
}

// act does what is next: each node has its pod first, and then pods of before are replaced.
func (k *keeper) act(ctx context.Context, d *appsv1.DaemonSet, v *view, lost []*corev1.Pod) (time.Duration, error) {
	wanted := 0
	for _, at := range v.places {
		if at.run {
			wanted++
		}
	}
	unavailable, surge := limits(d, wanted)
	s := v.manage(surge > 0)
	s.remove = append(s.remove, lost...)
	var again time.Duration
	for _, p := range s.failed {
		if left := k.ended(d, p); left > 0 {
			again = owned.Soonest(again, left)
		} else {
			s.remove = append(s.remove, p)
		}
	}
	s.failed = nil
	if s.empty() && d.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		if surge > 0 {
			s = v.surge(surge)
		} else {
			s = v.replace(unavailable)
		}
	}
	return again, k.do(ctx, d, v.hash, s)
}

// ended tells of a pod that has ended, and says how long it is left: one that fails at once is not made a thousand
// times.
func (k *keeper) ended(d *appsv1.DaemonSet, p *corev1.Pod) time.Duration {
	if p.Status.Phase == corev1.PodSucceeded {
		k.events.Eventf(d, corev1.EventTypeNormal, "SucceededDaemonPod", "Found succeeded daemon pod %s/%s on node %s, will try to delete it", p.Namespace, p.Name, nodeOf(p))
		return 0
	}
	id, now := string(d.UID)+"/"+nodeOf(p), k.now()
	if k.backoff.IsInBackOffSinceUpdate(id, now) {
		return k.backoff.Get(id)
	}
	k.backoff.Next(id, now)
	k.events.Eventf(d, corev1.EventTypeWarning, "FailedDaemonPod", "Found failed daemon pod %s/%s on node %s, will try to kill it", p.Namespace, p.Name, nodeOf(p))
	return 0
}

// do makes and ends pods.
func (k *keeper) do(ctx context.Context, d *appsv1.DaemonSet, hash string, s step) error {
	_, failed := owned.Batches(min(len(s.create), burst), func(i int) error {
		p := bound(d)
		pin(&p.Spec, s.create[i])
		if p.Labels == nil {
			p.Labels = map[string]string{}
		}
		p.Labels[appsv1.ControllerRevisionHashLabelKey] = hash
		if g, has := d.Annotations[appsv1.DeprecatedTemplateGeneration]; has {
			p.Labels["pod-template-generation"] = g
		}
		_, err := k.keep.Create(ctx, d, p)
		return err
	})
	errs := owned.Each(min(len(s.remove), burst), func(i int) error { return k.keep.Delete(ctx, d, s.remove[i]) })
	return cmp.Or(append([]error{failed}, errs...)...)
}

// truncate removes revisions that are too old.
func (k *keeper) truncate(ctx context.Context, d *appsv1.DaemonSet, pods []*corev1.Pod, all []*appsv1.ControllerRevision, now *appsv1.ControllerRevision) error {
	if d.Spec.RevisionHistoryLimit == nil {
		return nil
	}
	used := map[string]bool{}
	for _, p := range pods {
		used[p.Labels[appsv1.ControllerRevisionHashLabelKey]] = true
	}
	delete(used, "")
	live := func(r *appsv1.ControllerRevision) bool {
		return r.Name == now.Name || used[r.Labels[appsv1.ControllerRevisionHashLabelKey]]
	}
	return k.history.Truncate(ctx, d, all, live, int(*d.Spec.RevisionHistoryLimit))
}

// say writes the status of a set, if it is another one. It says how long that waits, if it does.
func (k *keeper) say(ctx context.Context, key cache.ObjectName, d *appsv1.DaemonSet, s appsv1.DaemonSetStatus) (time.Duration, error) {
	if equality.Semantic.DeepEqual(d.Status, s) {
		return 0, nil
	}
	done := s.NumberAvailable == s.DesiredNumberScheduled && s.UpdatedNumberScheduled == s.DesiredNumberScheduled
	if s.ObservedGeneration != d.Status.ObservedGeneration || done || s.NumberAvailable < d.Status.NumberAvailable {
		k.pace.Wrote(key, k.now())
	} else if left := k.pace.Left(key, k.now()); left > 0 {
		return left, nil
	}
	return 0, k.write(ctx, key, d, s)
}

func (k *keeper) write(ctx context.Context, key cache.ObjectName, d *appsv1.DaemonSet, s appsv1.DaemonSetStatus) error {
	changed := *d
	changed.Status = s
	written, err := k.client.AppsV1().DaemonSets(d.Namespace).UpdateStatus(ctx, &changed, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("write status of daemon set %s: %w", key, err)
	}
	k.own.Wrote(key, written)
	return nil
}
