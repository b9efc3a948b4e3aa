package namespace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
)

// kindsThere are how many kinds of objects there are in namespaces.
const kindsThere = 60

// known is a server with so many kinds.
type known struct {
	discovery.ServerResourcesInterface

	fails atomic.Bool // not all of it answers
}

// away is what an aggregated server serves that does not answer.
const away = 7

func (k *known) ServerPreferredNamespacedResources() ([]*metav1.APIResourceList, error) {
	list := &metav1.APIResourceList{GroupVersion: "v1"}
	for i := range kindsThere {
		list.APIResources = append(list.APIResources, metav1.APIResource{
			Name: fmt.Sprintf("things%02d", i), Kind: fmt.Sprint("Thing", i), Namespaced: true, Verbs: []string{"list", "deletecollection", "delete"},
		})
	}
	if k.fails.Load() {
		list.APIResources = slices.Delete(list.APIResources, away, away+1)
		return []*metav1.APIResourceList{list}, errors.New("a server is away")
	}
	return []*metav1.APIResourceList{list}, nil
}

// world is a namespace that ends. objects are what there is of each kind; failing kinds cannot be listed.
type world struct {
	*emptier
	objects  map[string][]metav1.PartialObjectMetadata
	failing  map[string]bool
	requests map[string]int
	client   *fake.Clientset
	known    *known
}

func newWorld(t *testing.T) *world {
	t.Helper()
	now := metav1.Now()
	n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n", DeletionTimestamp: &now}}
	n.Spec.Finalizers = []corev1.FinalizerName{corev1.FinalizerKubernetes}
	w := &world{objects: map[string][]metav1.PartialObjectMetadata{}, failing: map[string]bool{}, requests: map[string]int{}, client: fake.NewClientset(n), known: &known{}}
	f := informers.NewSharedInformerFactory(w.client, 0).Core().V1()
	if err := f.Namespaces().Informer().GetStore().Add(n); err != nil {
		t.Fatal(err)
	}
	objects := metadatafake.NewSimpleMetadataClient(metadatafake.NewTestScheme())
	objects.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.requests[a.GetVerb()]++
		name := a.GetResource().Resource
		if w.failing[name] {
			return true, nil, errors.New("it does not answer")
		}
		if a.GetVerb() == "list" {
			list := &metav1.List{}
			for _, o := range w.objects[name] {
				list.Items = append(list.Items, runtime.RawExtension{Object: &o})
			}
			return true, list, nil
		}
		return true, nil, nil
	})
	w.emptier = &emptier{
		Deps:       Deps{Client: w.client, Metadata: objects, Discovery: w.known, Informers: f, Log: slog.New(slog.DiscardHandler)},
		namespaces: f.Namespaces().Lister(), waiting: map[string]wait{},
	}
	return w
}

// written counts the statuses that were written, and says what the last one is.
func (w *world) written(kind corev1.NamespaceConditionType) (int, string) {
	n, message := 0, ""
	for _, a := range w.client.Actions() {
		if u, is := a.(clienttesting.UpdateAction); is && a.GetSubresource() == "status" {
			n++
			for _, c := range u.GetObject().(*corev1.Namespace).Status.Conditions {
				if c.Type == kind {
					message = c.Message
				}
			}
		}
	}
	return n, message
}

// TestStuck has objects keep a namespace by finalizers that nobody takes, thousands of names: it is looked for these
// alone, each time later, until they go.
func TestStuck(t *testing.T) {
	w := newWorld(t)
	now := metav1.Now()
	for i := range 400 {
		o := metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: fmt.Sprint(i), DeletionTimestamp: &now}}
		for j := range 10 {
			o.Finalizers = append(o.Finalizers, fmt.Sprintf("example.org/%s%d-%d", strings.Repeat("x", 40), i, j))
		}
		w.objects["things07"] = append(w.objects["things07"], o)
	}
	want := lookAgain
	for i := range 10 {
		clear(w.requests)
		again, err := w.sync(t.Context(), "n")
		if err != nil || again != want {
			t.Fatalf("look %d: %s, %v", i, again, err)
		}
		if want *= 2; want > lookLast {
			want = lookLast
		}
		lists := 1
		if i == 0 {
			lists = kindsThere
		}
		if w.requests["list"] != lists || len(w.requests) != 1 {
			t.Errorf("look %d takes %v", i, w.requests)
		}
	}
	n, message := w.written(corev1.NamespaceFinalizersRemaining)
	if n != 1 || len(message) > 3000 || !strings.HasSuffix(message, " and 3980 more") {
		t.Errorf("it is said %d times: %d bytes", n, len(message))
	}
	w.objects["things07"] = w.objects["things07"][:1]
	if again, err := w.sync(t.Context(), "n"); err != nil || again != lookAgain {
		t.Errorf("where some have gone it is looked at after %s, %v", again, err)
	}
	clear(w.objects)
	if again, err := w.sync(t.Context(), "n"); err != nil || again != 0 || len(w.waiting) != 0 {
		t.Errorf("at its end: %s, %v, %v", again, err, w.waiting)
	}
	finalized := false
	for _, a := range w.client.Actions() {
		finalized = finalized || a.GetSubresource() == "finalize"
	}
	if !finalized {
		t.Error("it is not finalized")
	}
}

// TestFailing has some kinds not be listed, as of an API server that does not answer: the same is said once, in
// whatever order they fail, and nothing else is looked for again.
func TestFailing(t *testing.T) {
	w := newWorld(t)
	for i := range 20 {
		w.failing[fmt.Sprintf("things%02d", 3*i)] = true
	}
	want := lookFailed
	for i := range 20 {
		clear(w.requests)
		if again, err := w.sync(t.Context(), "n"); err != nil || again != want {
			t.Fatalf("look %d: %s, %v", i, again, err)
		}
		want = min(2*want, lookLast)
		if lists := w.requests["list"]; i > 0 && lists != 20 {
			t.Errorf("look %d asks for %d kinds", i, lists)
		}
	}
	if n, message := w.written(corev1.NamespaceDeletionContentFailure); n != 1 || !strings.HasPrefix(message, "Failed to delete all resource types, 20 remaining: ") || !strings.Contains(message, "things09: it does not answer") {
		t.Errorf("it is said %d times: %s", n, message)
	}
	if w.space("n") == w.space("other") {
		t.Error("others wait as long as it does")
	}
	clear(w.failing)
	if again, err := w.sync(t.Context(), "n"); err != nil || again != 0 || len(w.waiting) != 0 {
		t.Errorf("at its end: %s, %v, %v", again, err, w.waiting)
	}
}

// TestUnknown has not all kinds be known: those that are known are emptied once, and all are looked for at last.
func TestUnknown(t *testing.T) {
	w := newWorld(t)
	w.known.fails.Store(true)
	for i, want := range []int{kindsThere - 1, 0, 0} {
		clear(w.requests)
		if again, err := w.sync(t.Context(), "n"); err != nil || again != lookFailed<<i {
			t.Fatalf("look %d: %s, %v", i, again, err)
		}
		if got := w.requests["list"]; got != want {
			t.Errorf("look %d asks for %d kinds, want %d", i, got, want)
		}
	}
	if n, message := w.written(corev1.NamespaceDeletionDiscoveryFailure); n != 1 || message != "Discovery failed for some groups, 1 failing: a server is away" {
		t.Errorf("it is said %d times: %s", n, message)
	}
	if names := w.stuck(nil); !slices.Equal(names, []string{"n"}) || w.waiting["n"].again != lookFailed {
		t.Errorf("stuck are %v", names)
	}
	now := metav1.Now()
	w.objects[fmt.Sprintf("things%02d", away)] = []metav1.PartialObjectMetadata{{ObjectMeta: metav1.ObjectMeta{Namespace: "n", DeletionTimestamp: &now}}}
	w.known.fails.Store(false)
	clear(w.requests)
	if again, err := w.sync(t.Context(), "n"); err != nil || again != lookAgain || w.requests["list"] != kindsThere || len(w.stuck(nil)) != 0 {
		t.Errorf("when all are known: %s, %v, %v", again, err, w.requests)
	}
	clear(w.objects)
	if again, err := w.sync(t.Context(), "n"); err != nil || again != 0 || len(w.waiting) != 0 {
		t.Errorf("at its end: %s, %v, %v", again, err, w.waiting)
	}
}

// TestServedAgain has a server come back that a namespace has waited for for long: it is looked at then, and not later.
func TestServedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.known.fails.Store(true)
		said := watch.NewFake()
		w.Served = []cache.SharedIndexInformer{cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
				return &metav1.PartialObjectMetadataList{}, nil
			},
			WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return said, nil },
		}, w.client), &metav1.PartialObjectMetadata{}, 0, nil)}
		var finalized atomic.Bool
		w.client.PrependReactor("*", "namespaces", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if a.GetSubresource() == "finalize" {
				finalized.Store(true)
			}
			return false, nil, nil
		})
		e := newEmptier(w.Deps)
		e.waiting["n"] = wait{failed: true, unknown: true, again: lookLast}
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() { w.Informers.Namespaces().Informer().RunWithContext(ctx) })
		group.Go(func() { w.Informers.Pods().Informer().RunWithContext(ctx) })
		group.Go(func() { e.loop().Run(ctx) })
		time.Sleep(lookLast / 2)
		synctest.Wait()
		if finalized.Load() {
			t.Error("it is finalized before all kinds are known")
		}
		w.known.fails.Store(false)
		said.Add(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "v1.example.org"}})
		synctest.Wait()
		if !finalized.Load() {
			t.Error("it is not looked at when the server is back")
		}
		cancel()
		group.Wait()
	})
}

// TestOfNamespace has what is written here lead to no look.
func TestOfNamespace(t *testing.T) {
	lives := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	ends := lives.DeepCopy()
	ends.DeletionTimestamp = new(metav1.NewTime(time.Unix(1, 0)))
	said := ends.DeepCopy()
	said.Status.Phase = corev1.NamespaceTerminating
	let := ends.DeepCopy()
	let.Spec.Finalizers = []corev1.FinalizerName{"example.org/x"}
	for _, c := range []struct {
		before, after any
		looks         bool
	}{
		{nil, lives, false},
		{lives, ends, true},
		{nil, ends, true},
		{ends, said, false},
		{let, said, true},
		{said, nil, true},
	} {
		if got := len(ofNamespace(c.before, c.after)) > 0; got != c.looks {
			t.Errorf("%v to %v: %v", c.before, c.after, got)
		}
	}
}
