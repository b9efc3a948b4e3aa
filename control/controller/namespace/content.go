package namespace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/set"

	"github.com/berth-node/berth/control/controller"
)

// page bounds what is listed at a time.
const page = 500

// kind is a resource that namespaces have.
type kind struct {
	resource schema.GroupVersionResource
	verbs    set.Set[string]
}

// list are the kinds of objects that may be in a namespace. Some of them come with an error, when an API server that is
// aggregated does not answer.
func (e *emptier) list() ([]kind, error) {
	lists, err := e.Discovery.ServerPreferredNamespacedResources()
	var all []kind
	for _, l := range lists {
		gv, parsed := schema.ParseGroupVersion(l.GroupVersion)
		if parsed != nil {
			err = errors.Join(err, parsed)
			continue
		}
		for _, r := range l.APIResources {
			k := kind{gv.WithResource(r.Name), set.New(r.Verbs...)}
			if k.verbs.Has("list") && k.verbs.HasAny("delete", "deletecollection") {
				all = append(all, k)
			}
		}
	}
	return all, err
}

// empty deletes what is in a namespace of some kinds, and says what is left. All else stays while there are pods: what
// they use is to be there until they end.
func (e *emptier) empty(ctx context.Context, namespace string, all []kind, unknown error) *rest {
	left := newRest()
	left.discovery = unknown
	podKind := corev1.SchemeGroupVersion.WithResource("pods")
	var others []kind
	for _, k := range all {
		if k.resource == podKind {
			e.remove(ctx, namespace, k, left)
		} else {
			others = append(others, k)
		}
	}
	if left.count[podKind.GroupResource()] > 0 || len(left.content) > 0 {
		return left
	}
	var group sync.WaitGroup
	turn := make(chan struct{}, kinds)
	for _, k := range others {
		group.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			err := controller.Safely(func() error {
				e.remove(ctx, namespace, k, left)
				return nil
			})
			if err != nil {
				left.unread(k, err)
			}
		})
	}
	group.Wait()
	return left
}

// remove deletes what is of one kind.
func (e *emptier) remove(ctx context.Context, namespace string, k kind, left *rest) {
	if ctx.Err() != nil {
		return
	}
	found, err := e.objects(ctx, namespace, k, true)
	if err == nil && found.lives {
		if err = e.delete(ctx, namespace, k); err == nil {
			found, err = e.objects(ctx, namespace, k, false)
		}
	}
	if err != nil {
		left.unread(k, fmt.Errorf("%s: %w", k.resource.GroupResource(), err))
		return
	}
	left.add(k, found)
}

func (e *emptier) delete(ctx context.Context, namespace string, k kind) error {
	background := metav1.DeletePropagationBackground
	objects, o := e.Metadata.Resource(k.resource).Namespace(namespace), metav1.DeleteOptions{PropagationPolicy: &background}
	if k.verbs.Has("deletecollection") {
		err := objects.DeleteCollection(ctx, o, metav1.ListOptions{})
		if !apierrors.IsMethodNotSupported(err) && !apierrors.IsNotFound(err) {
			return err
		}
	}
	list, err := objects.List(ctx, metav1.ListOptions{Limit: page})
	if err != nil {
		return err
	}
	for _, one := range list.Items {
		if one.DeletionTimestamp != nil {
			continue
		}
		if err := objects.Delete(ctx, one.Name, o); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// found are the objects of one kind.
type found struct {
	n          int
	lives      bool // some of them are not about to go
	finalizers map[string]int
	wait       time.Duration
}

func (f *found) add(all []metav1.PartialObjectMetadata) {
	f.n += len(all)
	for _, o := range all {
		f.lives = f.lives || o.DeletionTimestamp == nil
		for _, name := range o.Finalizers {
			f.finalizers[name]++
		}
		if o.DeletionGracePeriodSeconds != nil {
			// The pods' informer tells of their end; this is in case that a node does not.
			f.wait = max(f.wait, controller.Seconds(*o.DeletionGracePeriodSeconds))
		}
	}
}

// objects are those of one kind that there are, or some of them where any lives and only that is asked.
func (e *emptier) objects(ctx context.Context, namespace string, k kind, untilLives bool) (found, error) {
	all, o := found{finalizers: map[string]int{}}, metav1.ListOptions{Limit: page}
	for {
		list, err := e.Metadata.Resource(k.resource).Namespace(namespace).List(ctx, o)
		if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
			return found{}, nil // the resource itself is gone
		}
		if err != nil {
			return all, err
		}
		all.add(list.Items)
		if o.Continue = list.Continue; o.Continue == "" || untilLives && all.lives {
			return all, nil
		}
	}
}

// rest is what is left of a namespace, and what has failed.
type rest struct {
	mu         sync.Mutex
	kinds      []kind
	count      map[schema.GroupResource]int
	finalizers map[string]int
	discovery  error
	content    []error
	wait       time.Duration
	empty      map[schema.GroupVersionResource]bool
}

func newRest() *rest {
	return &rest{count: map[schema.GroupResource]int{}, finalizers: map[string]int{}, empty: map[schema.GroupVersionResource]bool{}}
}

func (r *rest) add(k kind, f found) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f.n == 0 {
		r.empty[k.resource] = true
		return
	}
	r.kinds = append(r.kinds, k)
	r.count[k.resource.GroupResource()] += f.n
	for name, n := range f.finalizers {
		r.finalizers[name] += n
	}
	r.wait = max(r.wait, f.wait)
}

// all is how many objects are left.
func (r *rest) all() int {
	n := 0
	for _, of := range r.count {
		n += of
	}
	return n
}

// unread remembers that what is of a kind could not be read, or deleted.
func (r *rest) unread(k kind, err error) {
	r.mu.Lock()
	r.kinds = append(r.kinds, k)
	r.mu.Unlock()
	r.fail(err)
}

// fail remembers a failure. They come in any order, and are told in one: else the same would be told anew each time.
func (r *rest) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.content = append(r.content, err)
	slices.SortFunc(r.content, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
}

// failed is why what is left is not only waited for.
func (r *rest) failed() error { return errors.Join(append([]error{r.discovery}, r.content...)...) }

func (r *rest) done() bool {
	return r.all() == 0 && r.failed() == nil
}
