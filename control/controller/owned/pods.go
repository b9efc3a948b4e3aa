package owned

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/berth-node/berth/control/controller"
	"github.com/berth-node/berth/control/slots"
)

// Events of what becomes of pods.
const (
	Created    = "SuccessfulCreate"
	NotCreated = "FailedCreate"
	Removed    = "SuccessfulDelete"
	NotRemoved = "FailedDelete"
)

// Owner is an object that pods are made for.
type Owner interface {
	metav1.Object
	runtime.Object
}

// FromTemplate is a pod of an owner, whose name the API chooses.
func FromTemplate(t *corev1.PodTemplateSpec, owner metav1.Object, kind schema.GroupVersionKind) *corev1.Pod {
	prefix := owner.GetName() + "-"
	if len(apivalidation.NameIsDNSSubdomain(prefix, true)) > 0 {
		prefix = owner.GetName()
	}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: owner.GetNamespace(), GenerateName: prefix, Labels: maps.Clone(t.Labels), Annotations: maps.Clone(t.Annotations),
		Finalizers: slices.Clone(t.Finalizers), OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, kind)},
	}}
	t.Spec.DeepCopyInto(&p.Spec)
	return p
}

// Keeper makes and ends pods of owners, tells of it by events of theirs, and remembers it until the cache has heard.
type Keeper struct {
	Client kubernetes.Interface
	Events record.EventRecorder
	Writes *Writes
}

// Create makes a pod.
func (k Keeper) Create(ctx context.Context, owner Owner, p *corev1.Pod) (*corev1.Pod, error) {
	made, err := k.Client.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
	if err != nil {
		// A namespace that ends takes no pods, which is nobody's failure.
		if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) && ctx.Err() == nil {
			k.Events.Eventf(owner, corev1.EventTypeWarning, NotCreated, "Error creating: %v", err)
		}
		return nil, fmt.Errorf("create pod: %w", err)
	}
	k.Writes.Wrote(cache.MetaObjectToName(owner), made)
	k.Events.Eventf(owner, corev1.EventTypeNormal, Created, "Created pod: %v", made.Name)
	return made, nil
}

// Delete ends a pod. One that is gone, or that another of its name is now, is no failure.
func (k Keeper) Delete(ctx context.Context, owner Owner, p *corev1.Pod) error {
	err := k.Client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}})
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		k.Writes.Ended(cache.MetaObjectToName(owner), p)
		return nil
	case err != nil:
		if ctx.Err() == nil {
			k.Events.Eventf(owner, corev1.EventTypeWarning, NotRemoved, "Error deleting: %v", err)
		}
		return fmt.Errorf("delete pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	k.Writes.Ended(cache.MetaObjectToName(owner), p)
	k.Events.Eventf(owner, corev1.EventTypeNormal, Removed, "Deleted pod: %v", p.Name)
	return nil
}

// Patch changes a pod.
func (k Keeper) Patch(ctx context.Context, p *corev1.Pod, patch []byte) (*corev1.Pod, error) {
	return k.Client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
}

// Batches does something so many times, first once, then twice as many at a time, as long as all succeed: what cannot
// be made, as for a quota, is not asked for a thousand times. It returns how many succeeded, and the first failure.
func Batches(n int, do func(i int) error) (int, error) {
	done := 0
	for size := 1; done < n; size *= 2 {
		size = min(size, n-done)
		good := 0
		var first error
		for _, err := range Each(size, func(i int) error { return do(done + i) }) {
			if err == nil {
				good++
			} else if first == nil {
				first = err
			}
		}
		if first != nil {
			return done + good, first
		}
		done += size
	}
	return done, nil
}

// atOnce is how many requests of one look are under way.
const atOnce = 50

// Each does something so many times, some at a time, and returns how each has ended.
func Each(n int, do func(i int) error) []error {
	errs, turns := make([]error, n), slots.New(atOnce)
	var group sync.WaitGroup
	for i := range n {
		// All are of one namespace, and those that take too long do not hold up the others: a look is not to last for
		// minutes.
		done, err := turns.TakeAny(context.Background())
		if err != nil {
			errs[i] = err
			continue
		}
		group.Go(func() {
			defer done()
			errs[i] = controller.Safely(func() error { return do(i) })
		})
	}
	group.Wait()
	return errs
}

// Message is what the API has said of a failure: it is what people look for in conditions.
func Message(err error) string {
	if s := apierrors.APIStatus(nil); errors.As(err, &s) {
		return s.Status().Message
	}
	return err.Error()
}

// Active says whether a pod has not ended and is not about to.
func Active(p *corev1.Pod) bool { return p.DeletionTimestamp == nil && !Finished(p) }

// Terminating says whether a pod is about to end.
func Terminating(p *corev1.Pod) bool { return p.DeletionTimestamp != nil && !Finished(p) }

// Finished says whether a pod's containers have ended for good.
func Finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

func readyCondition(p *corev1.Pod) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return c
		}
	}
	return nil
}

// Ready says whether a pod is ready.
func Ready(p *corev1.Pod) bool { return readyCondition(p) != nil }

// Available says whether a pod has been ready for so many seconds; if it is ready, but not for so long, how long it
// still takes.
func Available(p *corev1.Pod, seconds int32, now time.Time) (bool, time.Duration) {
	c := readyCondition(p)
	if c == nil {
		return false, 0
	}
	if seconds == 0 {
		return true, 0
	}
	if c.LastTransitionTime.IsZero() {
		return false, 0
	}
	left := c.LastTransitionTime.Add(time.Duration(seconds) * time.Second).Sub(now)
	return left <= 0, max(left, 0)
}
