// Package podgc removes pods that nobody else does: those of nodes that are gone or out of service, those that are
// deleted before they have a node, and the oldest of too many that have ended.
package podgc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
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

	"github.com/berth-node/berth/control/controller"
)

const (
	workers = 4
	// quarantine is how long a node is gone before its pods are: it may only be made again.
	quarantine = 40 * time.Second
	// unplaced is how long a pod without a node may be deleted before somebody has to remove it.
	unplaced = 2 * time.Second
	// keep is how many pods that have ended stay.
	keep = 12500
	// between is how far apart looks at all of them are, where there are more: each of thousands that end leads to one.
	between = 5 * time.Second
	// fewGone is how many nodes are remembered to be gone, whether they have pods or not.
	fewGone = 1000
)

// byEnd is the index of the pods that have ended, by their namespaces.
const byEnd = "ended"

type collector struct {
	client kubernetes.Interface
	nodes  corelisters.NodeLister
	pods   corelisters.PodLister
	index  cache.Indexer // of pods
	keep   int
	now    func() time.Time

	mu   sync.Mutex
	last time.Time            // that all that have ended were looked at
	gone map[string]time.Time // nodes that are gone, and since when they are known to be
	many int                  // of these, when it is looked which of them still have pods
}

// New makes the controller.
func New(client kubernetes.Interface, informers coreinformers.Interface, log *slog.Logger) (controller.Controller, error) {
	pods := informers.Pods().Informer()
	if err := controller.IndexByNode(pods); err != nil {
		return nil, err
	}
	err := controller.Index(pods, byEnd, func(o any) ([]string, error) {
		if p, ok := o.(*corev1.Pod); ok && hasEnded(p) {
			return []string{p.Namespace}, nil
		}
		return nil, nil
	})
	if err != nil {
		return nil, err
	}
	c := &collector{
		client: client, nodes: informers.Nodes().Lister(), pods: informers.Pods().Lister(), index: pods.GetIndexer(), keep: keep,
		now: time.Now, gone: map[string]time.Time{},
	}
	return controller.NewLoop(log, workers, c.sync).
		Watch(informers.Nodes().Informer(), c.ofNode).
		WatchChanges(pods, c.ofPod), nil
}

// ofNode are the pods of a node that is gone, or out of service.
func (c *collector) ofNode(o any) []cache.ObjectName {
	n, ok := o.(*corev1.Node)
	if !ok {
		return nil
	}
	now, err := c.nodes.Get(n.Name)
	if !apierrors.IsNotFound(err) {
		c.found(n.Name)
		if err != nil || !outOfService(now) {
			return nil
		}
	}
	return controller.KeysOn(c.index, n.Name)
}

// outOfService says whether nothing runs on a node any more: people say so by a taint, which does not count while the
// node itself says that it is well.
func outOfService(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService }) &&
		!slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
}

func (c *collector) ofPod(before, after any) []cache.ObjectName {
	was, _ := before.(*corev1.Pod)
	is, _ := after.(*corev1.Pod)
	if is == nil {
		return nil // who is gone needs nobody
	}
	key := cache.MetaObjectToName(is)
	if hasEnded(is) && (was == nil || !hasEnded(was)) {
		// The empty key is their number.
		return []cache.ObjectName{{}, key}
	}
	return []cache.ObjectName{key}
}

func (c *collector) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	if key == (cache.ObjectName{}) {
		return c.oldest(ctx)
	}
	p, err := c.pods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find pod %s: %w", key, err)
	}
	if p.Spec.NodeName == "" {
		if p.DeletionTimestamp == nil {
			return 0, nil
		}
		// Who deletes such a pod removes it, too, in a second write. Only one that has come to a node and lost it, or
		// whose removal was cut off, is left.
		if left := p.DeletionTimestamp.Add(unplaced).Sub(c.now()); left > 0 {
			return left, nil
		}
		return 0, c.remove(ctx, p)
	}
	node, err := c.nodes.Get(p.Spec.NodeName)
	switch {
	case apierrors.IsNotFound(err):
		return c.orphan(ctx, p)
	case err != nil:
		return 0, fmt.Errorf("find node %s: %w", p.Spec.NodeName, err)
	case p.DeletionTimestamp != nil && outOfService(node):
		return 0, c.abandon(ctx, p)
	}
	return 0, nil
}

// abandon removes a pod that is to end on a node where nobody is left to say that it has.
func (c *collector) abandon(ctx context.Context, p *corev1.Pod) error {
	if !hasEnded(p) {
		// The UID keeps it from a pod that was made again under the name.
		patch := fmt.Appendf(nil, `{"metadata":{"uid":%q},"status":{"phase":%q}}`, p.UID, corev1.PodFailed)
		_, err := c.client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("write status of pod %s/%s: %w", p.Namespace, p.Name, err)
		}
	}
	return c.remove(ctx, p)
}

// orphan removes a pod whose node has been gone for long enough.
func (c *collector) orphan(ctx context.Context, p *corev1.Pod) (time.Duration, error) {
	c.mu.Lock()
	since, known := c.gone[p.Spec.NodeName]
	if !known {
		since = c.now()
		c.forget()
		c.gone[p.Spec.NodeName] = since
	}
	c.mu.Unlock()
	if left := since.Add(quarantine).Sub(c.now()); left > 0 {
		return left, nil
	}
	// The cache may be late.
	_, err := c.client.CoreV1().Nodes().Get(ctx, p.Spec.NodeName, metav1.GetOptions{})
	if err == nil {
		return quarantine, nil
	}
	if !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("find node %s: %w", p.Spec.NodeName, err)
	}
	if !hasEnded(p) {
		err := controller.Disrupt(ctx, c.client, p, "DeletionByPodGC", "PodGC: node no longer exists", corev1.PodFailed, c.now())
		if apierrors.IsNotFound(err) {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
	}
	return 0, c.remove(ctx, p)
}

// forget forgets nodes that no pod is on any more, where there are many: a pod may name any node that never was.
func (c *collector) forget() {
	if len(c.gone) < max(c.many, fewGone) {
		return
	}
	maps.DeleteFunc(c.gone, func(node string, _ time.Time) bool { return len(controller.PodsOn(c.index, node)) == 0 })
	c.many = 2 * len(c.gone)
}

// found forgets that a node was gone.
func (c *collector) found(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.gone, node)
}

// remove removes a pod at once: nobody is left who would say that it has ended.
func (c *collector) remove(ctx context.Context, p *corev1.Pod) error {
	now := int64(0)
	err := c.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &p.UID},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return nil
}

// oldest removes those that ended first, where there are too many.
func (c *collector) oldest(ctx context.Context) (time.Duration, error) {
	c.mu.Lock()
	left := c.last.Add(between).Sub(c.now())
	if left <= 0 || left > between {
		c.last, left = c.now(), 0
	}
	c.mu.Unlock()
	if left > 0 {
		return left, nil
	}
	var done [][]*corev1.Pod
	for _, namespace := range c.index.ListIndexFuncValues(byEnd) {
		all, err := c.index.ByIndex(byEnd, namespace)
		if err != nil {
			return 0, fmt.Errorf("list pods of namespace %s: %w", namespace, err)
		}
		var pods []*corev1.Pod
		for _, o := range all {
			if p, ok := o.(*corev1.Pod); ok && p.DeletionTimestamp == nil {
				pods = append(pods, p)
			}
		}
		done = append(done, pods)
	}
	var failed []error
	for _, p := range tooMany(done, c.keep) {
		failed = append(failed, c.remove(ctx, p))
	}
	return 0, errors.Join(failed...)
}

// tooMany are the oldest of so many pods that as many as may be are kept. They are of the namespaces that have the
// most: who has few of them keeps them, however many somebody else's jobs leave.
func tooMany(of [][]*corev1.Pod, keep int) []*corev1.Pod {
	slices.SortFunc(of, func(a, b []*corev1.Pod) int { return cmp.Compare(len(a), len(b)) })
	var out []*corev1.Pod
	for i, pods := range of {
		// What those with few leave of their shares the others have.
		share := min(keep/(len(of)-i), len(pods))
		keep -= share
		if share == len(pods) {
			continue
		}
		slices.SortFunc(pods, func(a, b *corev1.Pod) int {
			return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
		})
		out = append(out, pods[:len(pods)-share]...)
	}
	return out
}

func hasEnded(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}
