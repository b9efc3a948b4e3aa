// Package replicaset keeps so many pods as ReplicaSets and ReplicationControllers say.
package replicaset

import (
	"cmp"
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
	appsinformers "k8s.io/client-go/informers/apps/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/berth-node/berth/control/controller"
	"github.com/berth-node/berth/control/controller/owned"
)

const (
	workers = 5
	// burst is how many pods are made or ended before others have their turn.
	burst = 500
)

type keeper struct {
	kind     kind
	client   kubernetes.Interface
	pods     owned.Pods
	siblings func(*appsv1.ReplicaSet) []*appsv1.ReplicaSet // those of the same owner, itself among them
	keep     owned.Keeper
	own      *owned.Writes // of sets themselves
	pace     owned.Pace
	looks    owned.Pace
	now      func() time.Time
}

// NewReplicaSets makes the controller of ReplicaSets.
func NewReplicaSets(client kubernetes.Interface, from appsinformers.ReplicaSetInformer, pods coreinformers.PodInformer, log *slog.Logger) (controller.Controller, error) {
	index, err := owned.NewIndex[*appsv1.ReplicaSet](from.Informer())
	if err != nil {
		return nil, err
	}
	siblings := func(s *appsv1.ReplicaSet) []*appsv1.ReplicaSet {
		if c := metav1.GetControllerOfNoCopy(s); c != nil {
			return index.Of(c.UID)
		}
		return []*appsv1.ReplicaSet{s}
	}
	return makeLoop(client, sets{client, from, from.Lister()}, siblings, "replicaset-controller", pods, log)
}

// NewReplicationControllers makes the controller of ReplicationControllers.
func NewReplicationControllers(client kubernetes.Interface, from coreinformers.ReplicationControllerInformer, pods coreinformers.PodInformer, log *slog.Logger) (controller.Controller, error) {
	siblings := func(s *appsv1.ReplicaSet) []*appsv1.ReplicaSet { return []*appsv1.ReplicaSet{s} }
	return makeLoop(client, controllers{client, from, from.Lister()}, siblings, "replication-controller", pods, log)
}

func makeLoop(client kubernetes.Interface, k kind, siblings func(*appsv1.ReplicaSet) []*appsv1.ReplicaSet, component string,
	pods coreinformers.PodInformer, log *slog.Logger,
) (controller.Controller, error) {
	index, err := owned.NewIndex[*corev1.Pod](pods.Informer())
	if err != nil {
		return nil, err
	}
	adopting, err := k.adopting()
	if err != nil {
		return nil, err
	}
	return controller.WithEvents(client, component, func(events record.EventRecorder) (controller.Controller, error) {
		r := &keeper{
			kind: k, client: client, pods: index, siblings: siblings, own: owned.NewWrites(k.informer().GetIndexer()), now: time.Now,
			keep: owned.Keeper{Client: client, Events: events, Writes: owned.NewWrites(index.Cache())},
		}
		return controller.NewLoop(log, workers, r.sync).
			Watch(k.informer(), owned.Key).
			Watch(pods.Informer(), owned.Keys(k.gvk(), func(o metav1.Object) []cache.ObjectName {
				if p, ok := o.(*corev1.Pod); ok && owned.Active(p) {
					return adopting(p)
				}
				return nil
			})), nil
	})
}

func selector(s *appsv1.ReplicaSet) labels.Selector { return owned.Selector(s.Spec.Selector) }

func (r *keeper) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	s, err := r.kind.get(key)
	if apierrors.IsNotFound(err) {
		r.keep.Writes.Forget(key)
		r.own.Forget(key)
		r.pace.Forget(key)
		r.looks.Forget(key)
		return 0, nil
	}
	if err != nil {
		return 0, notFound(r.kind, key, err)
	}
	if selector(s).Empty() {
		return 0, nil // one that selects all pods would adopt them
	}
	// What is decided by a set of before would be undone.
	if r.own.Behind(key) {
		return owned.Late, nil
	}
	if left := r.looks.Rest(key, r.now(), int(s.Status.Replicas)); left > 0 && s.Status.ObservedGeneration == s.Generation {
		return left, nil
	}
	own := r.pods.Of(s.UID)
	active, err := r.claim(ctx, s, key, own)
	if err != nil {
		return 0, err
	}
	terminating := 0
	for _, p := range own {
		if owned.Terminating(p) {
			terminating++
		}
	}
	diff := len(active) - int(*s.Spec.Replicas)
	var failed error
	var again time.Duration
	switch {
	case s.DeletionTimestamp != nil:
	case r.keep.Writes.Behind(key):
		again = owned.Late
	default:
		failed = r.scale(ctx, s, active, diff)
	}
	next, later := status(s, active, terminating, failed, diff, r.now())
	left, err := r.say(ctx, key, s, next)
	return owned.Soonest(again, later, left), errors.Join(failed, err)
}

// claim are the active pods of a set.
func (r *keeper) claim(ctx context.Context, s *appsv1.ReplicaSet, key cache.ObjectName, own []*corev1.Pod) ([]*corev1.Pod, error) {
	return owned.Claim[*corev1.Pod]{
		Owner: s, Kind: r.kind.gvk(), Selector: selector(s), Patch: r.keep.Patch,
		Fresh: func(ctx context.Context) (metav1.Object, error) { return r.kind.fresh(ctx, key) },
	}.Of(ctx, onlyActive(own), onlyActive(r.pods.Orphans(s.Namespace, selector(s))))
}

func onlyActive(pods []*corev1.Pod) []*corev1.Pod {
	var all []*corev1.Pod
	for _, p := range pods {
		if owned.Active(p) {
			all = append(all, p)
		}
	}
	return all
}

// scale makes pods that miss, or ends those of which there are too many.
func (r *keeper) scale(ctx context.Context, s *appsv1.ReplicaSet, active []*corev1.Pod, diff int) error {
	object := r.kind.object(s)
	if diff < 0 {
		_, err := owned.Batches(min(-diff, burst), func(int) error {
			_, err := r.keep.Create(ctx, object, owned.FromTemplate(&s.Spec.Template, s, r.kind.gvk()))
			return err
		})
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil
		}
		// Where there are more to be made, those that are made lead here again.
		return err
	}
	if diff == 0 {
		return nil
	}
	if diff < len(active) {
		var related []*corev1.Pod
		for _, sibling := range r.siblings(s) {
			related = append(related, r.pods.Of(sibling.UID)...)
		}
		owned.Rank(active, related, r.now())
	}
	errs := owned.Each(min(diff, burst), func(i int) error { return r.keep.Delete(ctx, object, active[i]) })
	return cmp.Or(errs...)
}

// say writes the status of a set, if it is another one. It says how long that waits, if it does.
func (r *keeper) say(ctx context.Context, key cache.ObjectName, s *appsv1.ReplicaSet, next appsv1.ReplicaSetStatus) (time.Duration, error) {
	if _, is := r.kind.(controllers); is {
		next.TerminatingReplicas = nil // a ReplicationController has no such field
	}
	if equality.Semantic.DeepEqual(s.Status, next) {
		return 0, nil
	}
	if !urgent(s, next) {
		if left := r.pace.Left(key, r.now()); left > 0 {
			return left, nil
		}
	} else {
		r.pace.Wrote(key, r.now())
	}
	changed := *s
	changed.Status = next
	written, err := r.kind.write(ctx, &changed)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("write status of %s %s: %w", r.kind.gvk().Kind, key, err)
	}
	r.own.Wrote(key, written)
	return 0, nil
}
