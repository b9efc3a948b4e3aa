// Package nodelifecycle says of nodes what they cannot say themselves: that they are not heard of any more. Their
// conditions become taints, by which the scheduler keeps away from them and their pods are evicted in the end.
package nodelifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	coordinationinformers "k8s.io/client-go/informers/coordination/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	coordinationlisters "k8s.io/client-go/listers/coordination/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-node/berth/control/controller"
)

const workers = 4

// seen is what was last heard of a node. The time is that of this clock: those of nodes may be others.
type seen struct {
	renewed, heartbeat time.Time // as the node says them
	at                 time.Time
	ready              bool
}

type keeper struct {
	client kubernetes.Interface
	nodes  corelisters.NodeLister
	pods   cache.Indexer
	leases coordinationlisters.LeaseNamespaceLister
	rules  Rules
	loop   *controller.Loop[string]
	now    func() time.Time

	mu      sync.Mutex
	seen    map[string]seen
	evicted map[string]time.Time // when the last node of a zone was given up
	cut     map[string]bool      // zones that were cut off when a node of theirs was looked at last
	healed  map[string]time.Time // when a zone was no longer cut off
}

// New makes the controller.
func New(client, reader kubernetes.Interface, informers coreinformers.Interface, rules Rules, log *slog.Logger) (controller.Controller, error) {
	leases := coordinationinformers.NewLeaseInformer(reader, corev1.NamespaceNodeLease, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	if err := leases.SetTransform(controller.WithoutManagers); err != nil {
		return nil, fmt.Errorf("watch leases: %w", err)
	}
	if err := controller.IndexByNode(informers.Pods().Informer()); err != nil {
		return nil, err
	}
	k := &keeper{
		client: client, nodes: informers.Nodes().Lister(), pods: informers.Pods().Informer().GetIndexer(),
		leases: coordinationlisters.NewLeaseLister(leases.GetIndexer()).Leases(corev1.NamespaceNodeLease),
		rules:  rules, now: time.Now,
		seen: map[string]seen{}, evicted: map[string]time.Time{}, cut: map[string]bool{}, healed: map[string]time.Time{},
	}
	// Leases are there before nodes are looked at: without its lease a node would be silent.
	k.loop = controller.NewLoop(log, workers, k.sync).
		WatchOwn(leases, controller.Name).
		Watch(informers.Pods().Informer(), func(any) []string { return nil }).
		Watch(informers.Nodes().Informer(), controller.Name)
	return k.loop, nil
}

func (k *keeper) sync(ctx context.Context, name string) (time.Duration, error) {
	node, err := k.nodes.Get(name)
	if apierrors.IsNotFound(err) {
		k.mu.Lock()
		delete(k.seen, name)
		k.mu.Unlock()
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find node %s: %w", name, err)
	}
	left, err := k.hear(node)
	if err != nil {
		return 0, err
	}
	if left <= 0 {
		changed, err := k.silence(ctx, node)
		if err != nil || changed {
			return 0, err // what follows from it is done when it is seen
		}
	}
	again, err := k.taint(ctx, node)
	if !isReady(node) {
		err = errors.Join(err, k.unready(ctx, name))
	}
	if left > 0 && (again == 0 || left < again) {
		again = left
	}
	return again, err
}

// hear notes what a node says, and returns for how long it may be silent from now.
func (k *keeper) hear(node *corev1.Node) (time.Duration, error) {
	now := seen{ready: isReady(node)}
	lease, err := k.leases.Get(node.Name)
	if err == nil && lease.Spec.RenewTime != nil {
		now.renewed = lease.Spec.RenewTime.Time
	} else if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("find lease of node %s: %w", node.Name, err)
	}
	patience := k.rules.StartGrace
	if c := condition(node, corev1.NodeReady); c != nil {
		now.heartbeat, patience = c.LastHeartbeatTime.Time, k.rules.Grace
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	before, known := k.seen[node.Name]
	now.at = before.at
	if !known || !before.renewed.Equal(now.renewed) || !before.heartbeat.Equal(now.heartbeat) {
		now.at = k.now()
	}
	k.seen[node.Name] = now
	if known && before.ready != now.ready {
		k.others(node.Name)
	}
	return now.at.Add(patience).Sub(k.now()), nil
}

// others has nodes looked at that are not ready: whether they are given up depends on whether any node is.
func (k *keeper) others(but string) {
	all, err := k.nodes.List(labels.Everything())
	if err != nil {
		return
	}
	for _, n := range all {
		if n.Name != but && !isReady(n) {
			k.loop.Add(n.Name)
		}
	}
}

// silence says of a node that nobody knows how it is.
func (k *keeper) silence(ctx context.Context, node *corev1.Node) (bool, error) {
	changed := false
	node = node.DeepCopy()
	for _, kind := range []corev1.NodeConditionType{
		corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure,
	} {
		now := metav1.NewTime(k.now())
		switch c := condition(node, kind); {
		case c == nil:
			node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
				Type: kind, Status: corev1.ConditionUnknown, Reason: "NodeStatusNeverUpdated", Message: "Kubelet never posted node status.",
				LastHeartbeatTime: node.CreationTimestamp, LastTransitionTime: now,
			})
			changed = true
		case c.Status != corev1.ConditionUnknown:
			c.Status, c.Reason, c.Message = corev1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status."
			c.LastTransitionTime = now
			changed = true
		}
	}
	if !changed {
		return false, nil
	}
	_, err := k.client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return true, fmt.Errorf("write status of node %s: %w", node.Name, err)
	}
	return true, nil
}

// unready has services send nothing to the pods of a node that does not say that they are ready.
func (k *keeper) unready(ctx context.Context, node string) error {
	var failed []error
	for _, p := range controller.PodsOn(k.pods, node) {
		i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
		if i < 0 || p.Status.Conditions[i].Status != corev1.ConditionTrue {
			continue
		}
		p = p.DeepCopy()
		c := &p.Status.Conditions[i]
		c.Status, c.Reason, c.Message, c.LastTransitionTime = corev1.ConditionFalse, "NodeNotReady", "The node is not ready", metav1.NewTime(k.now())
		if _, err := k.client.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
			failed = append(failed, fmt.Errorf("write status of pod %s/%s: %w", p.Namespace, p.Name, err))
		}
	}
	return errors.Join(failed...)
}

func condition(node *corev1.Node, kind corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == kind {
			return c
		}
	}
	return nil
}

func isReady(node *corev1.Node) bool {
	c := condition(node, corev1.NodeReady)
	return c != nil && c.Status == corev1.ConditionTrue
}
