package disruption

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
)

// TestScaleOfSets has a budget be about the pods of a hundred stateful sets: nobody is asked for their scales.
func TestScaleOfSets(t *testing.T) {
	const n = 100
	client := fake.NewClientset()
	apps := informers.NewSharedInformerFactory(client, 0).Apps().V1()
	var pods []*corev1.Pod
	for i := range n {
		s := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: fmt.Sprint(i), UID: types.UID(fmt.Sprint(i))}}
		s.Spec.Replicas = new(int32(3))
		if err := apps.StatefulSets().Informer().GetStore().Add(s); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			s = &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: s.Name, UID: "before"}}
		}
		pods = append(pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "n", Name: fmt.Sprint(i), OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(s, appsv1.SchemeGroupVersion.WithKind("StatefulSet"))},
		}})
	}
	got, err := owners{client, apps, nil}.of(t.Context(), pods)
	if err != nil || got.expected != 3*n/2 || len(got.unmanaged) != 0 {
		t.Errorf("the scale is %v, %v", got, err)
	}
	if asked := client.Actions(); len(asked) != 0 {
		t.Errorf("%d requests are made", len(asked))
	}
}

// TestSomeOf has thousands of pods be told of in a few words, which are the same in whatever order they come.
func TestSomeOf(t *testing.T) {
	t.Parallel()
	var names []string
	for i := range 5000 {
		names = append(names, fmt.Sprintf("%s-%04d", strings.Repeat("x", 200), (i*7)%5000))
	}
	text := someOf(names)
	slices.Reverse(names)
	if again := someOf(names); again != text || len(text) > 3000 || !strings.HasSuffix(text, "-0009 and 4990 more") {
		t.Errorf("it is %d bytes: %s", len(text), text)
	}
	if text := someOf([]string{"b", "a"}); text != "a, b" {
		t.Errorf("of two it is %q", text)
	}
}

// api is a server whose replication controllers, of some group, have 3 replicas each. It counts what it is asked for,
// and has a watch that never ends.
func api(t *testing.T) (kubernetes.Interface, func() (kinds, scales int)) {
	t.Helper()
	var mu sync.Mutex
	kinds, scales := 0, 0
	ended := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		switch name, found := strings.CutPrefix(r.URL.Path, "/apis/example.org/v1/namespaces/n/things/"); {
		case r.URL.Path == "/apis/example.org/v1":
			kinds++
			fmt.Fprint(w, `{"kind":"APIResourceList","apiVersion":"v1","resources":[{"name":"things","kind":"Thing"},{"name":"things/scale","kind":"Scale"}]}`)
		case found:
			scales++
			fmt.Fprintf(w, `{"kind":"Scale","apiVersion":"autoscaling/v1","metadata":{"uid":%q},"spec":{"replicas":3}}`, strings.TrimSuffix(name, "/scale"))
		default:
			t.Errorf("it is asked for %s", r.URL.Path)
			select {
			case <-ended:
			case <-r.Context().Done():
			}
		}
	}))
	t.Cleanup(s.Close)
	t.Cleanup(func() { close(ended) })
	client, err := kubernetes.NewForConfig(&rest.Config{Host: s.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return client, func() (int, int) {
		mu.Lock()
		defer mu.Unlock()
		return kinds, scales
	}
}

func podsOf(n int, ref metav1.OwnerReference) []*corev1.Pod {
	var pods []*corev1.Pod
	for i := range n {
		own := ref
		own.UID, own.Controller = types.UID(fmt.Sprint(i)), new(true)
		if own.Name == "" {
			own.Name = fmt.Sprint(i)
		}
		pods = append(pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: fmt.Sprint(i), OwnerReferences: []metav1.OwnerReference{own}}})
	}
	return pods
}

// TestScaleOfOthers has pods say that they are of a kind whose scales the API tells: it is asked for the kind once, and
// for so many scales at most.
func TestScaleOfOthers(t *testing.T) {
	t.Parallel()
	client, asked := api(t)
	things := metav1.OwnerReference{APIVersion: "example.org/v1", Kind: "Thing"}
	s, err := owners{client: client}.of(t.Context(), podsOf(50, things))
	if kinds, scales := asked(); err != nil || s.expected != 150 || kinds != 1 || scales != 50 {
		t.Errorf("%d, %v: asked are %d kinds and %d scales", s.expected, err, kinds, scales)
	}
	_, err = owners{client: client}.of(t.Context(), podsOf(5000, things))
	if _, scales := asked(); !errors.Is(err, errOwner) || scales != 50+maxAsked {
		t.Errorf("%v: asked are %d scales", err, scales)
	}
}

// TestScaleOfPaths has pods name as their owners what is a path to something else, as to a watch that never ends.
func TestScaleOfPaths(t *testing.T) {
	t.Parallel()
	client, _ := api(t)
	for _, ref := range []metav1.OwnerReference{
		{APIVersion: "example.org/v1", Kind: "Thing", Name: "../../../watch/namespaces/n/pods"},
		{APIVersion: "example.org/v1", Kind: "Thing", Name: ".."},
		{APIVersion: "../metrics", Kind: "Thing", Name: "x"},
		{APIVersion: "example.org/..", Kind: "Thing", Name: "x"},
	} {
		if s, err := (owners{client: client}).of(t.Context(), podsOf(1, ref)); err != nil || s.expected != 0 {
			t.Errorf("%v has %d, %v", ref, s.expected, err)
		}
	}
}

// TestScaleOfControllers has thousands of pods say that they are of replication controllers: nobody is asked.
func TestScaleOfControllers(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset()
	from := informers.NewSharedInformerFactory(client, 0).Core().V1().ReplicationControllers()
	if err := from.Informer().GetStore().Add(&corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "7", UID: "7"}, Spec: corev1.ReplicationControllerSpec{Replicas: new(int32(4))},
	}); err != nil {
		t.Fatal(err)
	}
	s, err := owners{client: client, controllers: from.Lister()}.of(t.Context(), podsOf(5000, metav1.OwnerReference{APIVersion: "v1", Kind: "ReplicationController"}))
	if err != nil || s.expected != 4 || len(client.Actions()) != 0 {
		t.Errorf("%d, %v after %d requests", s.expected, err, len(client.Actions()))
	}
}
