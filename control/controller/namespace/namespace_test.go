package namespace

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
)

// kindsThere are how many kinds of objects there are in namespaces.
const kindsThere = 60

// known is a server with so many kinds.
type known struct {
	discovery.ServerResourcesInterface
}

func (known) ServerPreferredNamespacedResources() ([]*metav1.APIResourceList, error) {
	list := &metav1.APIResourceList{GroupVersion: "v1"}
	for i := range kindsThere {
		list.APIResources = append(list.APIResources, metav1.APIResource{
			Name: fmt.Sprintf("things%02d", i), Kind: fmt.Sprint("Thing", i), Namespaced: true, Verbs: []string{"list", "deletecollection", "delete"},
		})
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
}

func newWorld(t *testing.T) *world {
	t.Helper()
	now := metav1.Now()
	n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n", DeletionTimestamp: &now}}
	n.Spec.Finalizers = []corev1.FinalizerName{corev1.FinalizerKubernetes}
	w := &world{objects: map[string][]metav1.PartialObjectMetadata{}, failing: map[string]bool{}, requests: map[string]int{}, client: fake.NewClientset(n)}
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
		Deps:       Deps{Client: w.client, Metadata: objects, Discovery: known{}, Informers: f, Log: slog.New(slog.DiscardHandler)},
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
// whatever order they fail.
func TestFailing(t *testing.T) {
	w := newWorld(t)
	for i := range 20 {
		w.failing[fmt.Sprintf("things%02d", 3*i)] = true
	}
	for range 20 {
		if _, err := w.sync(t.Context(), "n"); err == nil {
			t.Fatal("it does not fail")
		}
	}
	if n, message := w.written(corev1.NamespaceDeletionContentFailure); n != 1 || !strings.Contains(message, "things09: it does not answer") {
		t.Errorf("it is said %d times: %s", n, message)
	}
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
