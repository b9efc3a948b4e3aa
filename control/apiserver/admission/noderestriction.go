package admission

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apiserver/pkg/admission"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-node/berth/control/apiserver/auth"
)

// nodeRestriction keeps a node to what is its own, where that depends on the object: who has taken over a node must not
// have the cluster.
type nodeRestriction struct {
	given    given
	pods     corelisters.PodLister
	nodes    corelisters.NodeLister
	accounts corelisters.ServiceAccountLister
	claims   corelisters.PersistentVolumeClaimLister
	volumes  corelisters.PersistentVolumeLister
	drivers  storagelisters.CSIDriverLister
}

func newNodeRestriction(g given) (checks, error) {
	core := g.informers.Core().V1()
	n := &nodeRestriction{
		g, core.Pods().Lister(), core.Nodes().Lister(), core.ServiceAccounts().Lister(), core.PersistentVolumeClaims().Lister(),
		core.PersistentVolumes().Lister(), g.informers.Storage().V1().CSIDrivers().Lister(),
	}
	return checks{
		operations: []admission.Operation{admission.Create, admission.Update, admission.Delete}, resources: []string{"*"},
		admit: func(ctx context.Context, a admission.Attributes) error {
			node, is := auth.NodeOf(a.GetUserInfo())
			if !is {
				if a.GetUserInfo() != nil && slices.Contains(a.GetUserInfo().GetGroups(), "system:nodes") {
					return forbid(a, "could not determine node from user %q", a.GetUserInfo().GetName())
				}
				return nil
			}
			if node == "" {
				return forbid(a, "could not determine node from user %q", a.GetUserInfo().GetName())
			}
			// Only nodes wait for what only they are checked with.
			for _, synced := range []cache.InformerSynced{core.Pods().Informer().HasSynced, core.Nodes().Informer().HasSynced} {
				if !synced() && !waitFor(ctx, synced) {
					return forbid(a, "not yet ready to handle request")
				}
			}
			if err := n.check(ctx, a, node); err != nil {
				return admission.NewForbidden(a, err)
			}
			return nil
		},
	}, nil
}

func waitFor(ctx context.Context, synced cache.InformerSynced) bool {
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	return cache.WaitForCacheSync(ctx.Done(), synced)
}

func (n *nodeRestriction) check(ctx context.Context, a admission.Attributes, node string) error {
	switch resourceOf(a) {
	case "pods":
		return n.pod(a, node)
	case "pods/status":
		return n.podStatus(a, node)
	case "pods/eviction":
		return n.ownPod(a.GetNamespace(), a.GetName(), node, "evict")
	case "nodes", "nodes/status":
		return n.node(a, node)
	case "persistentvolumeclaims/status":
		return claimStatus(a, node)
	case "persistentvolumeclaims":
		return fmt.Errorf("may only update PVC status")
	case "serviceaccounts/token":
		return n.token(ctx, a, node)
	case "leases.coordination.k8s.io":
		return lease(a, node)
	case "csinodes.storage.k8s.io":
		return csiNode(a, node)
	case "resourceslices.resource.k8s.io":
		return slice(a, node)
	case "certificatesigningrequests.certificates.k8s.io":
		return signingRequest(a)
	case "podcertificaterequests.certificates.k8s.io":
		return n.certificateRequest(a, node)
	}
	if a.GetResource().Group == "" && a.GetResource().Resource == "pods" {
		return fmt.Errorf("unexpected pod subresource %q, only 'status' and 'eviction' are allowed", a.GetSubresource())
	}
	return nil
}

// typed is the object of a request, of the type that its resource has.
func typed[T any](o any) (T, error) {
	t, ok := o.(T)
	if !ok {
		return t, fmt.Errorf("unexpected type %T", o)
	}
	return t, nil
}

// claimStatus lets a node write of a claim only how its growing goes.
func claimStatus(a admission.Attributes, node string) error {
	if a.GetOperation() != admission.Update {
		return fmt.Errorf("unexpected operation %q", a.GetOperation())
	}
	o, err := typed[*corev1.PersistentVolumeClaim](a.GetObject())
	if err != nil {
		return err
	}
	old, err := typed[*corev1.PersistentVolumeClaim](a.GetOldObject())
	if err != nil {
		return err
	}
	rest := func(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
		c = c.DeepCopy()
		c.ResourceVersion, c.ManagedFields = "", nil
		c.Status.Capacity, c.Status.Conditions = nil, nil
		c.Status.AllocatedResources, c.Status.AllocatedResourceStatuses = nil, nil
		return c
	}
	if !equality.Semantic.DeepEqual(rest(o), rest(old)) {
		return fmt.Errorf("node %q is not allowed to update fields other than status.capacity and status.conditions", node)
	}
	return nil
}
