package apiserver

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-node/berth/agent/object"
)

// fakeServer has objects and a history of them, as an API server does, and the faults that a test wants.
type fakeServer struct {
	mu      sync.Mutex
	cond    *sync.Cond
	version int
	floor   int // of the history: what was before is compacted
	objects map[string]object.Object
	history []change
	epoch   int // watches of one before it are cut
	down    error
	refuse  map[string]error // by resource, or resource/name
	frozen  map[string]bool  // by the same, questions are not answered
	repeats bool             // events are told again and again
	plain   bool             // it does not stream what there is
	asked   map[string]int
	only    map[string]string // resources that it has one version of
}

type change struct {
	version  int
	resource string
	kind     watch.EventType
	o        object.Object
}

func newFake() *fakeServer {
	f := &fakeServer{version: 100, objects: map[string]object.Object{}, refuse: map[string]error{}, frozen: map[string]bool{}, asked: map[string]int{}}
	f.cond = sync.NewCond(&f.mu)
	return f
}

func id(resource, namespace, name string) string { return resource + "/" + namespace + "/" + name }

func copyOf(o object.Object) object.Object { return o.DeepCopyObject().(object.Object) }

// put makes or changes an object.
func (f *fakeServer) put(resource string, o object.Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version++
	o = copyOf(o)
	o.SetResourceVersion(strconv.Itoa(f.version))
	kind := watch.Added
	if f.objects[id(resource, o.GetNamespace(), o.GetName())] != nil {
		kind = watch.Modified
	}
	f.objects[id(resource, o.GetNamespace(), o.GetName())] = o
	f.history = append(f.history, change{f.version, resource, kind, o})
	f.cond.Broadcast()
}

func (f *fakeServer) remove(resource, namespace, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := id(resource, namespace, name)
	o := f.objects[key]
	if o == nil {
		return
	}
	f.version++
	o = copyOf(o)
	o.SetResourceVersion(strconv.Itoa(f.version))
	delete(f.objects, key)
	f.history = append(f.history, change{f.version, resource, watch.Deleted, o})
	f.cond.Broadcast()
}

// cut ends all watches, with the history gone where it is compacted.
func (f *fakeServer) cut(compact bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.epoch++
	if compact {
		f.floor = f.version
		f.history = nil
	}
	f.cond.Broadcast()
}

func (f *fakeServer) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	f.cond.Broadcast()
}

// notices has the server be away until the pods were asked for in vain.
func (f *fakeServer) notices() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = errRefused
	f.epoch++
	f.cond.Broadcast()
	for asked := f.asked["pods"]; f.asked["pods"] == asked; {
		f.cond.Wait()
	}
}

func matches(o object.Object, fields string) bool {
	key, value, _ := strings.Cut(fields, "=")
	switch key {
	case "metadata.name":
		return o.GetName() == value
	case "spec.nodeName":
		pod, ok := o.(*corev1.Pod)
		return ok && pod.Spec.NodeName == value
	}
	return true
}

// hold waits while questions about a resource are not answered, and says how they fail.
func (f *fakeServer) hold(ctx context.Context, keys ...string) error {
	stop := context.AfterFunc(ctx, func() { f.set(func() {}) })
	defer stop()
	for _, key := range keys {
		f.asked[key]++
	}
	f.cond.Broadcast()
	for {
		frozen := false
		for _, key := range keys {
			if err := f.refuse[key]; err != nil {
				return err
			}
			frozen = frozen || f.frozen[key]
		}
		switch {
		case f.down != nil:
			return f.down
		case ctx.Err() != nil:
			return ctx.Err()
		case !frozen:
			f.cond.Broadcast()
			return nil
		}
		f.cond.Wait()
	}
}

func (f *fakeServer) Get(ctx context.Context, res schema.GroupVersionResource, key types.NamespacedName, into runtime.Object) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.hold(ctx, res.Resource, res.Resource+"/"+key.Name); err != nil {
		return err
	}
	o := f.objects[id(res.Resource, key.Namespace, key.Name)]
	if o == nil {
		return apierrors.NewNotFound(res.GroupResource(), key.Name)
	}
	return decode(o, into)
}

func (f *fakeServer) List(ctx context.Context, res schema.GroupVersionResource, namespace string, opts metav1.ListOptions, into runtime.Object) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.hold(ctx, res.Resource); err != nil {
		return err
	}
	if !f.has(res) {
		return apierrors.NewNotFound(res.GroupResource(), "")
	}
	var items []runtime.Object
	for _, o := range f.there(res.Resource, namespace, opts.FieldSelector) {
		items = append(items, copyOf(o))
	}
	into.(metav1.ListInterface).SetResourceVersion(strconv.Itoa(f.version))
	return meta.SetList(into, items)
}

func (f *fakeServer) has(res schema.GroupVersionResource) bool {
	only := f.only[res.Resource]
	return only == "" || only == res.Version
}

func (f *fakeServer) there(resource, namespace, fields string) []object.Object {
	var out []object.Object
	for key, o := range f.objects {
		if strings.HasPrefix(key, resource+"/") && (namespace == "" || o.GetNamespace() == namespace) && matches(o, fields) {
			out = append(out, o)
		}
	}
	return out
}

func (f *fakeServer) Watch(ctx context.Context, res schema.GroupVersionResource, namespace string, opts metav1.ListOptions) (watch.Interface, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := strings.TrimPrefix(opts.FieldSelector, "metadata.name=")
	if err := f.hold(ctx, res.Resource, res.Resource+"/"+name); err != nil {
		return nil, err
	}
	if !f.has(res) {
		return nil, apierrors.NewNotFound(res.GroupResource(), "")
	}
	if f.plain && opts.SendInitialEvents != nil {
		return nil, apierrors.NewInvalid(schema.GroupKind{}, "", nil)
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &fakeWatch{events: make(chan watch.Event), stop: cancel, done: make(chan struct{})}
	from := f.version
	var first []watch.Event
	if opts.SendInitialEvents != nil {
		for _, o := range f.there(res.Resource, namespace, opts.FieldSelector) {
			first = append(first, watch.Event{Type: watch.Added, Object: copyOf(o)})
		}
		end := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: strconv.Itoa(f.version), Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}}
		first = append(first, watch.Event{Type: watch.Bookmark, Object: end})
	} else {
		from, _ = strconv.Atoi(opts.ResourceVersion)
		if from < f.floor {
			gone := apierrors.NewResourceExpired("too old resource version").Status()
			first = append(first, watch.Event{Type: watch.Error, Object: &gone})
			from = -1
		}
	}
	fits := func(c change) bool {
		return c.resource == res.Resource && (namespace == "" || c.o.GetNamespace() == namespace) && matches(c.o, opts.FieldSelector)
	}
	go f.serve(ctx, w, f.epoch, from, first, fits)
	return w, nil
}

func (f *fakeServer) serve(ctx context.Context, w *fakeWatch, epoch, from int, first []watch.Event, fits func(change) bool) {
	defer close(w.done)
	defer close(w.events)
	send := func(e watch.Event) bool {
		select {
		case <-ctx.Done():
			return false
		case w.events <- e:
			return true
		}
	}
	for _, e := range first {
		if !send(e) {
			return
		}
	}
	if from < 0 {
		return
	}
	stop := context.AfterFunc(ctx, func() { f.set(func() {}) })
	defer stop()
	for {
		f.mu.Lock()
		var batch []change
		for {
			for _, c := range f.history {
				if c.version > from {
					batch = append(batch, c)
				}
			}
			if len(batch) > 0 || ctx.Err() != nil || f.epoch != epoch {
				break
			}
			f.cond.Wait()
		}
		over, repeats := ctx.Err() != nil || f.epoch != epoch, f.repeats
		f.mu.Unlock()
		if over {
			return
		}
		for i, c := range batch {
			from = c.version
			times := 1
			if repeats {
				times = 1 + i%3
			}
			for range times {
				if fits(c) && !send(watch.Event{Type: c.kind, Object: copyOf(c.o)}) {
					return
				}
			}
		}
	}
}

type fakeWatch struct {
	events chan watch.Event
	stop   context.CancelFunc
	done   chan struct{}
}

func (w *fakeWatch) Stop()                          { w.stop() }
func (w *fakeWatch) ResultChan() <-chan watch.Event { return w.events }

func decode(from object.Object, into runtime.Object) error {
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(copyOf(from))
	if err != nil {
		return err
	}
	return runtime.DefaultUnstructuredConverter.FromUnstructured(m, into)
}

var errRefused = errors.New("connection refused")

func podOn(node, name, uid string, change func(*corev1.Pod)) *corev1.Pod {
	no := false
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(uid), Generation: 1}}
	p.Spec.NodeName, p.Spec.EnableServiceLinks = node, &no
	p.Spec.Containers = []corev1.Container{{Name: "main", Image: "image:1"}}
	if change != nil {
		change(p)
	}
	return p
}

func configMap(name, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("u-" + name)}, Data: map[string]string{"k": value}}
}

func envFrom(maps ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, m := range maps {
			p.Spec.Containers[0].EnvFrom = append(p.Spec.Containers[0].EnvFrom, corev1.EnvFromSource{
				ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: m}},
			})
		}
	}
}

func forbidden(name string) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, name, fmt.Errorf("no relationship"))
}
