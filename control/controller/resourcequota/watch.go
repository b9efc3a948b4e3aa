package resourcequota

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
)

// watches hear of changes of what some quota counts, by the metadata of the kinds that quotas name and of no others,
// and keep nothing but which objects there are.
type watches struct {
	metadata metadata.Interface
	changed  func(namespace string)
	group    sync.WaitGroup

	mu  sync.Mutex
	all map[schema.GroupVersionResource]bool
}

// add has a resource be watched from now on, until ctx ends.
func (w *watches) add(ctx context.Context, r schema.GroupVersionResource) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all[r] || ctx.Err() != nil {
		return
	}
	w.all[r] = true
	objects := w.metadata.Resource(r)
	from := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return objects.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return objects.Watch(ctx, o)
		},
	}
	reflector := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(from, w.metadata), &metav1.PartialObjectMetadata{},
		sink{w.changed}, cache.ReflectorOptions{Name: "resourcequota", TypeDescription: r.String()})
	w.group.Go(func() { reflector.RunWithContext(ctx) })
}

// sink tells in which namespaces something has changed. It implements [cache.ReflectorStore].
type sink struct{ changed func(string) }

func (s sink) tell(o any) error {
	m, err := meta.Accessor(o)
	if err == nil {
		s.changed(m.GetNamespace())
	}
	return err
}

// Add implements [cache.ReflectorStore].
func (s sink) Add(o any) error { return s.tell(o) }

// Update implements [cache.ReflectorStore].
func (s sink) Update(o any) error { return s.tell(o) }

// Delete implements [cache.ReflectorStore].
func (s sink) Delete(o any) error { return s.tell(o) }

// Replace implements [cache.ReflectorStore]. What is gone is not in it, so that all are looked at.
func (s sink) Replace([]any, string) error {
	s.changed("")
	return nil
}

// Resync implements [cache.ReflectorStore].
func (s sink) Resync() error { return nil }
