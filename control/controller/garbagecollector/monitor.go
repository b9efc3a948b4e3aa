package garbagecollector

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
)

// syncPatience is how long a kind is waited for whose objects cannot be listed: its server may never answer again.
const syncPatience = 30 * time.Second

// monitors watch the metadata of all objects that can be deleted, and keep nothing of them but what the graph does.
type monitors struct {
	objects metadata.Interface
	graph   *graph
	look    func(types.UID)
	changed func() // is told when it may be that other kinds are served
	listed  func() // is told when all objects of a kind are known
	log     *slog.Logger

	mu  sync.Mutex
	all map[schema.GroupKind]*monitor
}

type monitor struct {
	of     resource
	since  time.Time
	cancel context.CancelFunc
	ended  chan struct{}
	sink   *sink
}

// follow watches the kinds that are served, and no others.
func (m *monitors) follow(ctx context.Context, kinds map[schema.GroupKind]resource) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for of, one := range m.all {
		if r, is := kinds[of]; is && r == one.of {
			continue
		}
		one.stop()
		delete(m.all, of)
		if _, is := kinds[of]; !is {
			m.tell(m.graph.replace(one.sink.kind, nil))
		}
	}
	for of, r := range kinds {
		if _, is := m.all[of]; is || ctx.Err() != nil {
			continue
		}
		m.all[of] = m.begin(ctx, of, r)
	}
}

func (m *monitors) begin(ctx context.Context, of schema.GroupKind, r resource) *monitor {
	ctx, cancel := context.WithCancel(ctx)
	one := &monitor{of: r, since: time.Now(), cancel: cancel, ended: make(chan struct{}), sink: &sink{
		kind: unique.Make(of), graph: m.graph, tell: m.tell, changed: func() {}, listed: m.listed,
	}}
	if of.Group == "apiextensions.k8s.io" || of.Group == "apiregistration.k8s.io" {
		one.sink.changed = m.changed
	}
	objects := m.objects.Resource(r.resource)
	from := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return objects.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return objects.Watch(ctx, o)
		},
	}
	reflector := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(from, m.objects), &metav1.PartialObjectMetadata{}, one.sink,
		cache.ReflectorOptions{Name: "garbagecollector", TypeDescription: r.resource.String()})
	go func() {
		defer close(one.ended)
		reflector.RunWithContext(ctx)
	}()
	return one
}

func (m *monitors) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, one := range m.all {
		one.stop()
	}
	clear(m.all)
}

func (one *monitor) stop() {
	one.cancel()
	<-one.ended
}

// synced says whether all objects that there are are known, but those of kinds that have not answered for long.
func (m *monitors) synced() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, one := range m.all {
		if !one.sink.synced.Load() && time.Since(one.since) < syncPatience {
			return false
		}
	}
	return true
}

func (m *monitors) tell(all []types.UID) {
	for _, uid := range all {
		m.look(uid)
	}
}

// sink gives to the graph what is told of one kind. It implements [cache.ReflectorStore].
type sink struct {
	kind    unique.Handle[schema.GroupKind]
	graph   *graph
	tell    func([]types.UID)
	changed func()
	listed  func()
	synced  atomic.Bool
}

func (s *sink) read(o any) (object, error) {
	m, ok := o.(*metav1.PartialObjectMetadata)
	if !ok {
		return object{}, fmt.Errorf("read what is told of %s: it is a %T", s.kind.Value(), o)
	}
	return objectOf(s.kind, m), nil
}

// Add implements [cache.ReflectorStore].
func (s *sink) Add(o any) error {
	read, err := s.read(o)
	if err == nil {
		s.tell(s.graph.observe(read))
		s.changed()
	}
	return err
}

// Update implements [cache.ReflectorStore].
func (s *sink) Update(o any) error { return s.Add(o) }

// Delete implements [cache.ReflectorStore].
func (s *sink) Delete(o any) error {
	read, err := s.read(o)
	if err == nil {
		s.tell(s.graph.gone(read.uid))
		s.changed()
	}
	return err
}

// Replace implements [cache.ReflectorStore].
func (s *sink) Replace(all []any, _ string) error {
	objects := make([]object, 0, len(all))
	for _, o := range all {
		read, err := s.read(o)
		if err != nil {
			return err
		}
		objects = append(objects, read)
	}
	s.tell(s.graph.replace(s.kind, objects))
	s.synced.Store(true)
	s.listed()
	s.changed()
	return nil
}

// Resync implements [cache.ReflectorStore].
func (s *sink) Resync() error { return nil }
