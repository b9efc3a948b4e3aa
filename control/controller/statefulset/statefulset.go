// Package statefulset keeps the pods of StatefulSets, each with a name and claims of its own, in their order.
package statefulset

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	appsinformers "k8s.io/client-go/informers/apps/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/berth-node/berth/control/controller"
	"github.com/berth-node/berth/control/controller/history"
	"github.com/berth-node/berth/control/controller/owned"
	"github.com/berth-node/berth/control/controller/statefulset/plan"
)

const (
	workers = 5
	// hashLabel is by which a revision says its hash. Pods say the revision's name.
	hashLabel = "controller.kubernetes.io/hash"
)

var kind = appsv1.SchemeGroupVersion.WithKind("StatefulSet")

type keeper struct {
	client   kubernetes.Interface
	sets     appslisters.StatefulSetLister
	claimsIn corelisters.PersistentVolumeClaimLister
	index    owned.Pods
	events   record.EventRecorder
	history  history.Keeper
	own      *owned.Writes // of sets
	writes   *owned.Writes // of pods
	pace     owned.Pace
	now      func() time.Time
}

// look is one look at a set.
type look struct {
	keeper          *keeper
	key             cache.ObjectName
	set             *appsv1.StatefulSet
	pods            map[int]*corev1.Pod // by ordinal
	current, update *appsv1.ControllerRevision
	collisions      int32
	wanted          plan.Set
	at              time.Time
	again           time.Duration
}

// New makes the controller.
func New(client kubernetes.Interface, apps appsinformers.Interface, pods coreinformers.PodInformer,
	claims coreinformers.PersistentVolumeClaimInformer, log *slog.Logger,
) (controller.Controller, error) {
	index, err := owned.NewIndex[*corev1.Pod](pods.Informer())
	if err != nil {
		return nil, err
	}
	revisions, err := owned.NewIndex[*appsv1.ControllerRevision](apps.ControllerRevisions().Informer())
	if err != nil {
		return nil, err
	}
	adopting, err := owned.NewAdopting(apps.StatefulSets().Informer(), func(s *appsv1.StatefulSet) *metav1.LabelSelector { return s.Spec.Selector })
	if err != nil {
		return nil, err
	}
	return controller.WithEvents(client, "statefulset-controller", func(events record.EventRecorder) (controller.Controller, error) {
		k := &keeper{
			client: client, sets: apps.StatefulSets().Lister(), claimsIn: claims.Lister(), index: index, events: events, now: time.Now,
			history: history.Keeper{Client: client, Revisions: revisions, Writes: owned.NewWrites(revisions.Cache()), Kind: kind, Label: hashLabel, Prints: history.NewPrints()},
			own:     owned.NewWrites(apps.StatefulSets().Informer().GetIndexer()), writes: owned.NewWrites(index.Cache()),
		}
		return controller.NewLoop(log, workers, k.sync).
			Watch(apps.StatefulSets().Informer(), owned.Key).
			Watch(apps.ControllerRevisions().Informer(), owned.Keys(kind, adopting)).
			Watch(claims.Informer(), k.ofClaim).
			Watch(pods.Informer(), owned.Keys(kind, k.ofOrphan)), nil
	})
}

func selector(s *appsv1.StatefulSet) labels.Selector { return owned.Selector(s.Spec.Selector) }

func (k *keeper) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	s, err := k.sets.StatefulSets(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		k.own.Forget(key)
		k.writes.Forget(key)
		k.history.Forget(key)
		k.pace.Forget(key)
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find stateful set %s: %w", key, err)
	}
	if s.Spec.Selector == nil || selector(s).Empty() {
		return 0, nil // one that selects all pods would adopt them
	}
	if k.own.Behind(key) || k.history.Writes.Behind(key) {
		return owned.Late, nil
	}
	l := &look{keeper: k, key: key, set: s, pods: map[int]*corev1.Pod{}, at: k.now()}
	pods, err := l.claimPods(ctx)
	if err != nil {
		return 0, err
	}
	revisions, err := l.revisions(ctx)
	if errors.Is(err, history.ErrCollision) {
		l.collisions++
		status := *s.Status.DeepCopy()
		status.CollisionCount = &l.collisions
		return 0, errors.Join(err, l.write(ctx, status))
	}
	if err != nil {
		return 0, err
	}
	l.wanted = wanted(s, l.current.Name, l.update.Name)
	seen := l.podsOf(s)
	var failed error
	if k.writes.Behind(key) {
		l.again = owned.Soonest(l.again, owned.Late)
	} else {
		failed = l.do(ctx, plan.Next(l.wanted, seen))
	}
	if apierrors.HasStatusCause(failed, corev1.NamespaceTerminatingCause) {
		failed = nil
	}
	left, err := l.say(ctx, plan.Count(l.wanted, seen))
	if failed == nil && err == nil {
		failed = l.truncate(ctx, pods, revisions)
	}
	return owned.Soonest(l.again, left), errors.Join(failed, err)
}

func (l *look) fresh(ctx context.Context) (metav1.Object, error) {
	return l.keeper.client.AppsV1().StatefulSets(l.set.Namespace).Get(ctx, l.set.Name, metav1.GetOptions{})
}

// claimPods finds the pods of a set. Others may match its selector, which have other names.
func (l *look) claimPods(ctx context.Context) ([]*corev1.Pod, error) {
	pods, err := owned.Claim[*corev1.Pod]{
		Owner: l.set, Kind: kind, Selector: selector(l.set), Fresh: l.fresh,
		Takes: func(p *corev1.Pod) bool { return ordinalOf(l.set, p.Name) >= 0 },
		Patch: owned.Keeper{Client: l.keeper.client}.Patch,
	}.Of(ctx, l.keeper.index.Of(l.set.UID), l.keeper.index.Orphans(l.set.Namespace, selector(l.set)))
	for _, p := range pods {
		if n := ordinalOf(l.set, p.Name); n >= 0 {
			l.pods[n] = p
		}
	}
	return pods, err
}

// revisions finds the revision that pods are of, and the one that they are to be of.
func (l *look) revisions(ctx context.Context) ([]*appsv1.ControllerRevision, error) {
	of := history.Of{Owner: l.set, Selector: selector(l.set), Template: &l.set.Spec.Template, Fresh: l.fresh}
	if c := l.set.Status.CollisionCount; c != nil {
		of.Collisions = *c
	}
	l.collisions = of.Collisions
	all, err := l.keeper.history.Claim(ctx, of)
	if err != nil {
		return nil, err
	}
	if l.update, err = l.keeper.history.Now(ctx, of, all); err != nil {
		return nil, err
	}
	l.current = l.update
	for _, r := range all {
		if r.Name == l.set.Status.CurrentRevision {
			l.current = r
		}
	}
	return all, nil
}

// wanted is what a set says of its pods.
func wanted(s *appsv1.StatefulSet, current, update string) plan.Set {
	w := plan.Set{
		Replicas: int(*s.Spec.Replicas), Parallel: s.Spec.PodManagementPolicy == appsv1.ParallelPodManagement,
		OnDelete: s.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType, Ending: s.DeletionTimestamp != nil,
		MaxUnavailable: 1, Current: current, Update: update,
	}
	if s.Spec.Ordinals != nil {
		w.Start = int(s.Spec.Ordinals.Start)
	}
	r := s.Spec.UpdateStrategy.RollingUpdate
	if r == nil {
		return w
	}
	if r.Partition != nil {
		w.Partition = int(*r.Partition)
	}
	if r.MaxUnavailable != nil {
		// A percentage of none would never go on.
		if n, err := intstr.GetScaledValueFromIntOrPercent(r.MaxUnavailable, w.Replicas, true); err == nil {
			w.MaxUnavailable = max(n, 1)
		}
	}
	return w
}

// truncate removes revisions that are too old.
func (l *look) truncate(ctx context.Context, pods []*corev1.Pod, all []*appsv1.ControllerRevision) error {
	if l.set.Spec.RevisionHistoryLimit == nil || l.set.DeletionTimestamp != nil {
		return nil
	}
	used := map[string]bool{l.current.Name: true, l.update.Name: true}
	for _, p := range pods {
		used[p.Labels[appsv1.ControllerRevisionHashLabelKey]] = true
	}
	live := func(r *appsv1.ControllerRevision) bool { return used[r.Name] }
	return l.keeper.history.Truncate(ctx, l.set, all, live, int(*l.set.Spec.RevisionHistoryLimit))
}

// say writes the status of a set, if it is another one. It says how long that waits, if it does.
func (l *look) say(ctx context.Context, c plan.Status) (time.Duration, error) {
	was := l.set.Status
	now := appsv1.StatefulSetStatus{
		ObservedGeneration: l.set.Generation, Replicas: int32(c.Replicas), ReadyReplicas: int32(c.Ready), AvailableReplicas: int32(c.Available),
		CurrentReplicas: int32(c.Current), UpdatedReplicas: int32(c.Updated), CurrentRevision: c.CurrentRevision, UpdateRevision: l.update.Name,
		CollisionCount: &l.collisions, Conditions: was.Conditions,
	}
	if equality.Semantic.DeepEqual(was, now) {
		return 0, nil
	}
	n := *l.set.Spec.Replicas
	if was.ObservedGeneration != now.ObservedGeneration || now.AvailableReplicas == n && now.UpdatedReplicas == n || now.AvailableReplicas < was.AvailableReplicas {
		l.keeper.pace.Wrote(l.key, l.at)
	} else if left := l.keeper.pace.Left(l.key, l.at); left > 0 {
		return left, nil
	}
	return 0, l.write(ctx, now)
}

func (l *look) write(ctx context.Context, status appsv1.StatefulSetStatus) error {
	changed := *l.set
	changed.Status = status
	written, err := l.keeper.client.AppsV1().StatefulSets(changed.Namespace).UpdateStatus(ctx, &changed, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("write status of stateful set %s: %w", l.key, err)
	}
	l.keeper.own.Wrote(l.key, written)
	return nil
}
