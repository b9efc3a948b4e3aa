package node

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/watch"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/control/api/storage"
)

// server is an API server for one node's objects, which can be told to fail.
type server struct {
	mu       sync.Mutex
	version  int
	uids     int
	objects  map[string]Object // by resource
	watchers []*watch.RaceFreeFakeWatcher
	calls    []string
	changed  chan struct{} // closed and replaced with every call

	// fail says what is wrong with a call; nil: nothing.
	fail func(ctx context.Context, call string) error
}

func newServer() *server {
	return &server{version: 10, objects: map[string]Object{}, changed: make(chan struct{})}
}

func (s *server) begin(ctx context.Context, verb string, of schema.GroupVersionResource) error {
	call := verb + " " + of.Resource
	s.mu.Lock()
	fail := s.fail
	s.mu.Unlock()
	var err error
	if fail != nil {
		err = fail(ctx, call)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, call)
	close(s.changed)
	s.changed = make(chan struct{})
	return err
}

func (s *server) setFail(fail func(ctx context.Context, call string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = fail
}

// stamp gives an object a version.
func (s *server) stamp(o Object) {
	s.version++
	o.SetResourceVersion(strconv.Itoa(s.version))
	if o.GetUID() == "" {
		s.uids++
		o.SetUID(types.UID(fmt.Sprintf("uid-%d", s.uids)))
	}
}

func (s *server) tell(kind watch.EventType, o runtime.Object) {
	n, is := o.(*corev1.Node)
	if !is {
		return
	}
	for _, w := range s.watchers {
		w.Action(kind, n.DeepCopy())
	}
}

func into(from Object, to runtime.Object) {
	switch t := to.(type) {
	case *corev1.Node:
		from.(*corev1.Node).DeepCopyInto(t)
	case *coordinationv1.Lease:
		from.(*coordinationv1.Lease).DeepCopyInto(t)
	case *storagev1.CSINode:
		from.(*storagev1.CSINode).DeepCopyInto(t)
	}
}

func notFound(of schema.GroupVersionResource) error {
	return apierrors.NewNotFound(of.GroupResource(), "n")
}

func (s *server) Get(ctx context.Context, of schema.GroupVersionResource, _ types.NamespacedName, to runtime.Object) error {
	if err := s.begin(ctx, "get", of); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.objects[of.Resource]
	if o == nil {
		return notFound(of)
	}
	into(o, to)
	return nil
}

func (s *server) List(ctx context.Context, of schema.GroupVersionResource, _ string, _ metav1.ListOptions, to runtime.Object) error {
	if err := s.begin(ctx, "list", of); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	list := to.(*corev1.NodeList)
	list.ResourceVersion = strconv.Itoa(s.version)
	if o := s.objects[of.Resource]; o != nil {
		list.Items = append(list.Items, *o.(*corev1.Node).DeepCopy())
	}
	return nil
}

func (s *server) Watch(ctx context.Context, of schema.GroupVersionResource, _ string, opts metav1.ListOptions) (watch.Interface, error) {
	if err := s.begin(ctx, "watch", of); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w := watch.NewRaceFreeFake()
	// What has happened since the list.
	if o := s.objects[of.Resource]; o != nil {
		from, _ := number(opts.ResourceVersion)
		if at, _ := number(o.GetResourceVersion()); at > from {
			w.Modify(o.(*corev1.Node).DeepCopy())
		}
	}
	s.watchers = append(s.watchers, w)
	return w, nil
}

// endWatches ends all watches, as a server that is stopped.
func (s *server) endWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.watchers {
		w.Stop()
	}
	s.watchers = nil
}

func (s *server) Create(ctx context.Context, of schema.GroupVersionResource, o Object, to runtime.Object) error {
	if err := s.begin(ctx, "create", of); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects[of.Resource] != nil {
		return apierrors.NewAlreadyExists(of.GroupResource(), "n")
	}
	made := o.DeepCopyObject().(Object)
	s.stamp(made)
	s.objects[of.Resource] = made
	s.tell(watch.Added, made)
	into(made, to)
	return nil
}

func (s *server) Update(ctx context.Context, of schema.GroupVersionResource, o Object, to runtime.Object) error {
	if err := s.begin(ctx, "update", of); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	have := s.objects[of.Resource]
	if have == nil {
		return notFound(of)
	}
	if have.GetResourceVersion() != o.GetResourceVersion() {
		return apierrors.NewConflict(of.GroupResource(), "n", fmt.Errorf("changed"))
	}
	made := o.DeepCopyObject().(Object)
	if c, ok := made.(*storagev1.CSINode); ok {
		if errs := storage.ValidateCSINodeUpdate(c, have.(*storagev1.CSINode)); len(errs) > 0 {
			return apierrors.NewInvalid(schema.GroupKind{Kind: "CSINode"}, "n", errs)
		}
	}
	s.stamp(made)
	s.objects[of.Resource] = made
	into(made, to)
	return nil
}

func (s *server) Patch(
	ctx context.Context, of schema.GroupVersionResource, _ types.NamespacedName, _ types.PatchType, patch []byte, to runtime.Object,
	_ ...string,
) error {
	call := "patch"
	var sent map[string]any
	if json.Unmarshal(patch, &sent) == nil && sent["metadata"] != nil {
		call = "patch-with-metadata"
	}
	if err := s.begin(ctx, call, of); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	have := s.objects[of.Resource]
	if have == nil {
		return notFound(of)
	}
	text, err := json.Marshal(have)
	if err != nil {
		return err
	}
	made := &corev1.Node{}
	if text, err = strategicpatch.StrategicMergePatch(text, patch, made); err == nil {
		err = json.Unmarshal(text, made)
	}
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	s.stamp(made)
	s.objects[of.Resource] = made
	s.tell(watch.Modified, made)
	into(made, to)
	return nil
}

// change has somebody else change the Node; nil: delete it.
func (s *server) change(fn func(*corev1.Node)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.objects["nodes"].(*corev1.Node)
	if fn == nil {
		delete(s.objects, "nodes")
		s.version++
		s.tell(watch.Deleted, n)
		return
	}
	n = n.DeepCopy()
	fn(n)
	s.stamp(n)
	s.objects["nodes"] = n
	s.tell(watch.Modified, n)
}

func (s *server) put(of string, o Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stamp(o)
	s.objects[of] = o
}

// get is an object, nil where there is none.
func get[T Object](s *server, of string) (out T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o, ok := s.objects[of].(T); ok {
		return o.DeepCopyObject().(T)
	}
	return out
}

func (s *server) count(call string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, c := range s.calls {
		if c == call {
			n++
		}
	}
	return n
}

const patience = time.Minute

// until waits for calls until something is so.
func (s *server) until(t *testing.T, what string, is func() bool) {
	t.Helper()
	late := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond) // what is here is changed by more than calls
	defer tick.Stop()
	for !is() {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-tick.C:
		case <-late:
			t.Fatalf("%s: not within %s; calls: %q", what, patience, s.calls)
		}
	}
}

// heard are the events of a node.
type heard struct {
	mu   sync.Mutex
	list []string
}

func (h *heard) Node(typ, reason, format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.list = append(h.list, typ+" "+reason+" "+fmt.Sprintf(format, args...))
}

func (h *heard) has(text string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Contains(h.list, text)
}

// machine is a node's facts, which tests change.
type machine struct {
	mu    sync.Mutex
	facts Facts
	err   error // of the runtime
}

func (m *machine) set(fn func(*machine)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fn(m)
}

func source[T any](m *machine, of func(*Facts) T) func() T {
	return func() T {
		m.mu.Lock()
		defer m.mu.Unlock()
		return of(&m.facts)
	}
}

func (m *machine) sources() Sources {
	return Sources{
		Machine:   source(m, func(f *Facts) Machine { return f.Machine }),
		Addresses: source(m, func(f *Facts) []string { return f.Addresses }),
		Resources: source(m, func(f *Facts) Resources { return f.Resources }),
		Pressure:  source(m, func(f *Facts) []Pressure { return f.Pressure }),
		Drivers:   source(m, func(f *Facts) []Driver { return f.Drivers }),
		InUse:     source(m, func(f *Facts) []corev1.UniqueVolumeName { return f.InUse }),
		NotReady:  source(m, func(f *Facts) []string { return f.NotReady }),
		Runtime: func(context.Context) (Runtime, error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.facts.Runtime, m.err
		},
		Images: func(context.Context) ([]Image, error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.facts.Images, nil
		},
	}
}

func ready(is bool) *runtimeapi.StatusResponse {
	c := func(of string) *runtimeapi.RuntimeCondition {
		out := &runtimeapi.RuntimeCondition{Type: of, Status: is}
		if !is {
			out.Reason, out.Message = "Gone", "it is gone"
		}
		return out
	}
	return &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{
		Conditions: []*runtimeapi.RuntimeCondition{c(runtimeapi.RuntimeReady), c(runtimeapi.NetworkReady)},
	}}
}

// run runs a node at a server until the test ends.
func run(t *testing.T, s *server, m *machine, change func(*Config)) (*Node, *heard) {
	t.Helper()
	h := &heard{}
	c := Config{
		Client: s, Identity: m.facts.Identity, Sources: m.sources(), Events: h, Register: true, Limited: true, MaxImages: 50,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	if change != nil {
		change(&c)
	}
	n := New(c)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := n.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return n, h
}
