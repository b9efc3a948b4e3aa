// Package tainteviction ends pods on nodes whose taints they do not tolerate, or not for so long.
package tainteviction

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/berth-node/berth/control/controller"
)

const workers = 4

type evicter struct {
	client kubernetes.Interface
	nodes  corelisters.NodeLister
	pods   corelisters.PodLister
	now    func() time.Time
}

// New makes the controller.
func New(client kubernetes.Interface, informers coreinformers.Interface, log *slog.Logger) controller.Controller {
	e := &evicter{client, informers.Nodes().Lister(), informers.Pods().Lister(), time.Now}
	return controller.NewLoop(log, workers, e.sync).
		Watch(informers.Pods().Informer(), e.ofPod).
		Watch(informers.Nodes().Informer(), e.ofNode)
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
	return controller.PodsOn(e.pods, n)
}

func (e *evicter) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	p, err := e.pods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find pod %s: %w", key, err)
	}
	if p.DeletionTimestamp != nil || p.Spec.NodeName == "" {
		return 0, nil
	}
	node, err := e.nodes.Get(p.Spec.NodeName)
	if apierrors.IsNotFound(err) {
		return 0, nil // the garbage collector of pods has it
	}
	if err != nil {
		return 0, fmt.Errorf("find node %s: %w", p.Spec.NodeName, err)
	}
	at, evict := deadline(evicting(node), p.Spec.Tolerations, e.now())
	if !evict {
		return 0, nil
	}
	if left := at.Sub(e.now()); left > 0 {
		return left, nil
	}
	return 0, e.evict(ctx, p)
}

// evict says why a pod ends, and ends it.
func (e *evicter) evict(ctx context.Context, p *corev1.Pod) error {
	err := controller.Disrupt(ctx, e.client, p, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint", "", e.now())
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	err = e.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("evict pod %s/%s: %w", p.Namespace, p.Name, err)
	}
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
				d = time.Duration(*o.TolerationSeconds) * time.Second
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
