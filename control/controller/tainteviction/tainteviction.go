// Package tainteviction ends pods on nodes whose taints they do not tolerate, or not for so long.
package tainteviction

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/berth-node/berth/control/controller"
)

const workers = 4

// reason is that of the events of pods that go, and of those that need not any more.
const reason = "TaintManagerEviction"

type evicter struct {
	client kubernetes.Interface
	nodes  corelisters.NodeLister
	pods   corelisters.PodLister
	index  cache.Indexer // of pods
	events record.EventRecorder
	now    func() time.Time

	mu sync.Mutex
	// due are the pods that have to go when some time has passed, as this process knows them. Each is looked at again
	// then, and leaves it.
	due map[cache.ObjectName]types.UID
}

// New makes the controller.
func New(client kubernetes.Interface, informers coreinformers.Interface, events record.EventRecorder, log *slog.Logger) (controller.Controller, error) {
	pods := informers.Pods().Informer()
	if err := controller.IndexByNode(pods); err != nil {
		return nil, err
	}
	e := &evicter{
		client: client, nodes: informers.Nodes().Lister(), pods: informers.Pods().Lister(), index: pods.GetIndexer(), events: events, now: time.Now,
		due: map[cache.ObjectName]types.UID{},
	}
	return controller.NewLoop(log, workers, e.sync).
		Watch(pods, e.ofPod).
		Watch(informers.Nodes().Informer(), e.ofNode), nil
}

// ofPod has a pod looked at, if its node evicts at all: most do not, and pods change often.
func (e *evicter) ofPod(o any) []cache.ObjectName {
	p, ok := o.(*corev1.Pod)
	if !ok || p.Spec.NodeName == "" {
		return nil
	}
	if n, err := e.nodes.Get(p.Spec.NodeName); err != nil || len(evicting(n)) == 0 {
		return nil
	}
	return []cache.ObjectName{cache.MetaObjectToName(p)}
}

// ofNode are the pods on a node that evicts.
func (e *evicter) ofNode(o any) []cache.ObjectName {
	n, ok := o.(*corev1.Node)
	if !ok || len(evicting(n)) == 0 {
		return nil
	}
	return controller.KeysOn(e.index, n.Name)
}

func (e *evicter) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	p, err := e.pods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		e.settle(key)
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find pod %s: %w", key, err)
	}
	if p.DeletionTimestamp != nil || p.Spec.NodeName == "" {
		e.settle(key)
		return 0, nil
	}
	node, err := e.nodes.Get(p.Spec.NodeName)
	if apierrors.IsNotFound(err) {
		e.settle(key)
		return 0, nil // the garbage collector of pods has it
	}
	if err != nil {
		return 0, fmt.Errorf("find node %s: %w", p.Spec.NodeName, err)
	}
	at, evict := deadline(evicting(node), p.Spec.Tolerations, e.now())
	if !evict {
		if e.settle(key) == p.UID {
			e.events.Eventf(p, corev1.EventTypeNormal, reason, "Cancelling deletion of Pod %s", key)
		}
		return 0, nil
	}
	if left := at.Sub(e.now()); left > 0 {
		e.await(key, p.UID)
		return left, nil
	}
	return 0, e.evict(ctx, p)
}

// await remembers a pod that has to go later.
func (e *evicter) await(key cache.ObjectName, uid types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.due[key] = uid
}

// settle forgets a pod that has to go later, and returns which it was; empty: none.
func (e *evicter) settle(key cache.ObjectName) types.UID {
	e.mu.Lock()
	defer e.mu.Unlock()
	uid := e.due[key]
	delete(e.due, key)
	return uid
}

// evict says why a pod ends, and ends it.
func (e *evicter) evict(ctx context.Context, p *corev1.Pod) error {
	key := cache.MetaObjectToName(p)
	e.settle(key)
	err := controller.Disrupt(ctx, e.client, p, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint", "", e.now())
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	err = e.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("evict pod %s: %w", key, err)
	}
	e.events.Eventf(p, corev1.EventTypeNormal, reason, "Marking for deletion Pod %s", key)
	return nil
}

// evicting are the taints of a node by which pods go.
func evicting(n *corev1.Node) []corev1.Taint {
	var all []corev1.Taint
	for _, t := range n.Spec.Taints {
		if t.Effect == corev1.TaintEffectNoExecute {
			all = append(all, t)
		}
	}
	return all
}

// deadline is when a pod has to go by the taints of its node, if it has to. Since a taint says when it was added, the
// time is the same after a restart.
func deadline(taints []corev1.Taint, tolerations []corev1.Toleration, now time.Time) (time.Time, bool) {
	var end time.Time
	evict := false
	for _, t := range taints {
		tolerated, forever := false, false
		var left time.Duration
		for _, o := range tolerations {
			if !o.ToleratesTaint(klog.Background(), &t, false) {
				continue
			}
			d := time.Duration(0)
			if o.TolerationSeconds == nil {
				forever = true
			} else if *o.TolerationSeconds > 0 {
				d = controller.Seconds(*o.TolerationSeconds)
			}
			// Of several that tolerate it, the shortest counts.
			if o.TolerationSeconds != nil && (!tolerated || d < left) {
				tolerated, left = true, d
			}
		}
		if forever && !tolerated {
			continue
		}
		from := now
		if t.TimeAdded != nil {
			from = t.TimeAdded.Time
		}
		if at := from.Add(left); !evict || at.Before(end) {
			end, evict = at, true
		}
	}
	return end, evict
}
