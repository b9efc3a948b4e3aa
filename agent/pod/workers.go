package pod

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/pod/plan"
)

// workers starts and ends those of the node's pods. They belong to the goroutine of the manager; whoever else looks for
// a worker asks the registry.
type workers struct {
	node  *node
	live  map[types.NamespacedName]map[types.UID]*worker // of a name several, while pods end that were replaced
	ended chan *worker                                   // each that has ended, once
	wait  sync.WaitGroup
}

func newWorkers(n *node) *workers {
	return &workers{
		node: n, live: map[types.NamespacedName]map[types.UID]*worker{}, ended: make(chan *worker),
	}
}

// start starts the worker of a pod. How the pod was told to end before, the worker knows from its beginning.
func (s *workers) start(ctx context.Context, pod *corev1.Pod) *worker {
	w := newWorker(s.node, pod)
	if end := readTermination(s.node.cfg.RootDir, pod.UID); end != nil && end.Evicted != nil {
		w.fate.evicted, w.fate.end = end.Evicted, new(end.ending())
		w.told.evicted.Store(end.Evicted)
	} else if end == nil {
		w.fate.finalize(pod, nil)
	}
	key := keyOf(pod)
	if s.live[key] == nil {
		s.live[key] = map[types.UID]*worker{}
	}
	s.live[key][pod.UID] = w
	shown, ok := s.node.status.Get(key)
	s.node.tally.put(w, !ok || shown.UID != w.uid || !over(shown))
	s.node.registry.put(w)
	s.wait.Go(func() {
		w.managed.gone = w.run(ctx)
		w.told.tellEnd()
		s.ended <- w
	})
	return w
}

// end makes the worker's pod end within a grace. Told twice it is told once, unless it is to be over sooner.
func (s *workers) end(w *worker, grace time.Duration) {
	if w.managed.leaving && grace >= w.managed.grace {
		return
	}
	w.managed.leaving, w.managed.grace = true, grace
	e := plan.Ending{Since: time.Now(), Grace: grace}
	if before := readTermination(s.node.cfg.RootDir, w.uid); before != nil && before.Evicted == nil {
		// An agent before us has told it already.
		if b := before.ending(); !b.Since.Add(b.Grace).After(e.Since.Add(e.Grace)) {
			e = b
		}
	}
	w.mail.putOrder(order{end: &e})
}

// forget forgets one that has ended, and returns the name of its pod.
func (s *workers) forget(w *worker) types.NamespacedName {
	key := keyOf(w.share.Pod)
	delete(s.live[key], w.uid)
	if len(s.live[key]) == 0 {
		delete(s.live, key)
	}
	s.node.tally.forget(w)
	s.node.registry.drop(w)
	return key
}

// drain waits for all of them, who tell their end even when nobody is interested any more.
func (s *workers) drain() {
	for _, of := range s.live {
		for range of {
			<-s.ended
		}
	}
	s.wait.Wait()
}
