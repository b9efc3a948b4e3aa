// Package nodeipam gives each node a part of the cluster's range for the addresses of its pods.
package nodeipam

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/berth-node/berth/control/controller"
)

// again is how soon a node is looked at for which there was nothing left.
const again = time.Minute

// Deps are what the controller is made of.
type Deps struct {
	Client kubernetes.Interface
	Nodes  coreinformers.NodeInformer
	// Ranges are those of the cluster, Apart those that overlap with them and are for something else.
	Ranges []Range
	Apart  []netip.Prefix
	Events record.EventRecorder
	Log    *slog.Logger
}

type allocator struct {
	client kubernetes.Interface
	nodes  corelisters.NodeLister
	events record.EventRecorder

	mu    sync.Mutex
	pools []*pool
}

// New makes the controller. What nodes have is in their objects alone, all of which are known before any is given
// anything; one of them at a time is.
func New(d Deps) controller.Controller {
	a := &allocator{client: d.Client, nodes: d.Nodes.Lister(), events: d.Events}
	for _, r := range d.Ranges {
		a.pools = append(a.pools, newPool(r, d.Apart))
	}
	return controller.NewLoop(d.Log, 1, a.sync).WatchChanges(d.Nodes.Informer(), a.ofNode)
}

// ofNode notes what a node has, and leads to one that has nothing.
func (a *allocator) ofNode(before, after any) []string {
	was, _ := before.(*corev1.Node)
	is, _ := after.(*corev1.Node)
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.pools {
		if was != nil {
			for _, part := range prefixes(was.Spec.PodCIDRs) {
				p.free(was.Name, part)
			}
		}
		if is != nil {
			for _, part := range prefixes(is.Spec.PodCIDRs) {
				p.hold(is.Name, part)
			}
		}
	}
	if is != nil && len(is.Spec.PodCIDRs) == 0 {
		return []string{is.Name}
	}
	return nil
}

func (a *allocator) sync(ctx context.Context, name string) (time.Duration, error) {
	n, err := a.nodes.Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find node %s: %w", name, err)
	}
	if len(n.Spec.PodCIDRs) > 0 || n.DeletionTimestamp != nil {
		return 0, nil
	}
	parts, ok := a.take(name)
	if !ok {
		a.events.Eventf(n, corev1.EventTypeNormal, "CIDRNotAvailable", "Node %s status is now: CIDRNotAvailable", name)
		return again, nil
	}
	if err := a.write(ctx, n, parts); err != nil {
		// Where it is not known whether it was written nobody else is given it: the node may have it.
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
			a.giveBack(name, parts)
		}
		if apierrors.IsNotFound(err) {
			return 0, nil
		}
		a.events.Eventf(n, corev1.EventTypeNormal, "CIDRAssignmentFailed", "Node %s status is now: CIDRAssignmentFailed", name)
		return 0, fmt.Errorf("give node %s its range: %w", name, err)
	}
	return 0, nil
}

// take takes a part of each range, or none of any.
func (a *allocator) take(node string) ([]netip.Prefix, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var parts []netip.Prefix
	for _, p := range a.pools {
		part, ok := p.take(node)
		if !ok {
			for i, part := range parts {
				a.pools[i].free(node, part)
			}
			return nil, false
		}
		parts = append(parts, part)
	}
	return parts, true
}

func (a *allocator) giveBack(node string, parts []netip.Prefix) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, part := range parts {
		a.pools[i].free(node, part)
	}
}

// write gives a node its ranges. An answer that does not come is asked for: the ranges may be its own by then.
func (a *allocator) write(ctx context.Context, n *corev1.Node, parts []netip.Prefix) error {
	var texts []string
	for _, p := range parts {
		texts = append(texts, p.String())
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": n.UID}, "spec": map[string]any{"podCIDR": texts[0], "podCIDRs": texts},
	})
	if err != nil {
		return err
	}
	_, err = a.client.CoreV1().Nodes().Patch(ctx, n.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err == nil || apierrors.IsNotFound(err) {
		return err
	}
	now, asked := a.client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
	if asked == nil && now.UID == n.UID && len(now.Spec.PodCIDRs) == len(texts) && now.Spec.PodCIDRs[0] == texts[0] {
		return nil
	}
	return err
}
