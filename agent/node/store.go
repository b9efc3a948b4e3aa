package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// The resources that a node keeps.
var (
	nodes    = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	leases   = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
	csiNodes = schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "csinodes"}
)

// askServer is how long an answer of the API server is waited for.
const askServer = 10 * time.Second

// store is the Node as the API server has it, by a watch of it alone.
type store struct {
	client Client
	node   string
	log    *slog.Logger
	anew   chan struct{}
	saw    func(of object, version string)

	// Held while those who listen are told, so that they hear of changes in their order. Taken before mu.
	order sync.Mutex

	mu     sync.Mutex
	known  bool
	now    *corev1.Node // nil: there is none
	buried types.UID    // of the one that is gone: an answer to a write may be late
	heard  map[int]func(before, now *corev1.Node)
	next   int
}

func newStore(client Client, node string, log *slog.Logger) *store {
	return &store{
		client: client, node: node, log: log, anew: make(chan struct{}, 1), heard: map[int]func(before, now *corev1.Node){},
	}
}

// get is the Node, and whether it is known what it is.
func (s *store) get() (now *corev1.Node, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now, s.known
}

func (s *store) subscribe(fn func(before, now *corev1.Node)) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := s.next
	s.next++
	s.heard[id] = fn
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.heard, id)
	}
}

// set takes what the API server says. What it has said in the answer to a write may come again by the watch, later.
// List is true of an answer that is of now, whatever was known.
func (s *store) set(now *corev1.Node, list bool) {
	s.order.Lock()
	defer s.order.Unlock()
	s.put(now, list)
}

// put is set, with the order held.
func (s *store) put(now *corev1.Node, list bool) {
	s.mu.Lock()
	before := s.now
	if !list && now != nil && now.UID == s.buried {
		s.mu.Unlock()
		return
	}
	if s.known && !list && now != nil && before != nil && now.UID == before.UID && !later(now, before) {
		s.mu.Unlock()
		return
	}
	s.known, s.now, s.buried = true, now, ""
	if now == nil {
		s.buried = uidOf(before)
	}
	fns := make([]func(before, now *corev1.Node), 0, len(s.heard))
	for _, fn := range s.heard {
		fns = append(fns, fn)
	}
	s.mu.Unlock()
	if before == nil && now == nil && !list {
		return
	}
	for _, fn := range fns {
		fn(before, now)
	}
}

// gone takes it that there is no Node of a UID. Whoever hears of it late buries no other one that was made since.
func (s *store) gone(uid types.UID) {
	s.order.Lock()
	defer s.order.Unlock()
	if now, _ := s.get(); now != nil && now.UID == uid {
		s.put(nil, false)
	}
}

// later says whether a is of after b. Resource versions are numbers that grow, by the API's word (since 1.35) and by
// what all its servers have always done.
func later(a, b *corev1.Node) bool {
	x, ok1 := number(a.ResourceVersion)
	y, ok2 := number(b.ResourceVersion)
	return !ok1 || !ok2 || x > y
}

// again has the Node be read again.
func (s *store) again() { ring(s.anew) }

// run follows the Node until ctx ends. After every end of a watch it is read anew, which is one request: a server whose
// data is of a backup would have nothing to say to a watch that begins in its future.
func (s *store) run(ctx context.Context) {
	p := pause{least: 100 * time.Millisecond, most: 10 * time.Second}
	t := trouble{log: s.log, what: "read the Node"}
	for ctx.Err() == nil {
		began := time.Now()
		err := s.follow(ctx, &t)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			t.failed(err)
		}
		if time.Since(began) > time.Minute {
			p.reset()
		}
		// Who rings knows that the server is there.
		if !sleep(ctx, p.after(err), s.anew) {
			return
		}
	}
}

// follow reads the Node and hears of its changes, until that ends.
func (s *store) follow(ctx context.Context, t *trouble) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	opts := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, s.node).String()}
	version, err := s.read(ctx, opts)
	if err != nil {
		return fmt.Errorf("read Node: %w", err)
	}
	s.saw(ofNode, version)
	opts.ResourceVersion, opts.AllowWatchBookmarks = version, true
	w, err := s.watch(ctx, cancel, opts)
	if err != nil {
		return fmt.Errorf("watch Node: %w", err)
	}
	defer w.Stop()
	t.done()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.anew:
			return nil
		case e, open := <-w.ResultChan():
			if !open {
				return nil
			}
			if err := s.take(e); err != nil {
				return fmt.Errorf("watch Node: %w", err)
			}
		}
	}
}

// read is a list, since only that has a version to watch from where there is no Node.
func (s *store) read(ctx context.Context, opts metav1.ListOptions) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, askServer)
	defer cancel()
	var list corev1.NodeList
	if err := s.client.List(ctx, nodes, "", opts, &list); err != nil {
		return "", err
	}
	if list.ResourceVersion == "" { // any JSON is an empty list, and in that there would be no Node
		return "", errors.New("the list of the server has no version")
	}
	for i := range list.Items {
		if o := &list.Items[i]; o.Name == s.node {
			if o.UID == "" {
				return "", fmt.Errorf("%w: a Node without a UID", errOther)
			}
			s.set(o, true)
			return list.ResourceVersion, nil
		}
	}
	s.set(nil, true)
	return list.ResourceVersion, nil
}

// watch gives up when the server does not begin to answer. Once it has, the connection tells when it is broken.
func (s *store) watch(ctx context.Context, cancel context.CancelFunc, opts metav1.ListOptions) (watch.Interface, error) {
	late := time.AfterFunc(askServer, cancel)
	defer late.Stop()
	return s.client.Watch(ctx, nodes, "", opts)
}

func (s *store) take(e watch.Event) error {
	now, isNode := e.Object.(*corev1.Node)
	switch {
	case e.Type == watch.Error:
		return apierrors.FromObject(e.Object)
	case !isNode || e.Type == watch.Bookmark:
		return nil
	case now.Name != s.node, now.UID == "":
		return nil
	case e.Type == watch.Deleted:
		s.gone(now.UID)
	default:
		s.set(now, false)
	}
	s.saw(ofNode, now.ResourceVersion)
	return nil
}
