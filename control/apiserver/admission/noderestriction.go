package admission

import (
	"context"
	"fmt"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	kubeletapis "k8s.io/kubelet/pkg/apis"

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

// pod lets a node make and delete mirror pods of its own, which refer to nothing.
func (n *nodeRestriction) pod(a admission.Attributes, node string) error {
	switch a.GetOperation() {
	case admission.Delete:
		return n.ownPod(a.GetNamespace(), a.GetName(), node, "delete")
	case admission.Create:
	default:
		return fmt.Errorf("unexpected operation %q, node %q can only create and delete mirror pods", a.GetOperation(), node)
	}
	pod, err := typed[*corev1.Pod](a.GetObject())
	if err != nil {
		return err
	}
	if !isMirror(pod) {
		return fmt.Errorf("pod does not have %q annotation, node %q can only create mirror pods", corev1.MirrorPodAnnotationKey, node)
	}
	if pod.Spec.NodeName != node {
		return fmt.Errorf("node %q can only create pods with spec.nodeName set to itself", node)
	}
	if len(pod.OwnerReferences) != 1 {
		return fmt.Errorf("node %q can only create pods with a single owner reference set to itself", node)
	}
	owner := pod.OwnerReferences[0]
	if owner.APIVersion != "v1" || owner.Kind != "Node" || owner.Name != node || owner.Controller == nil || !*owner.Controller {
		return fmt.Errorf("node %q can only create pods with a controller owner reference set to itself", node)
	}
	if owner.BlockOwnerDeletion != nil && *owner.BlockOwnerDeletion {
		return fmt.Errorf("node %q must not set blockOwnerDeletion on an owner reference", node)
	}
	object, err := n.nodes.Get(node)
	if err != nil {
		return fmt.Errorf("look up node %s to verify its UID: %w", node, err)
	}
	if owner.UID != object.UID {
		return fmt.Errorf("node %s UID mismatch: expected %s got %s", node, object.UID, owner.UID)
	}
	if what := refersTo(pod); what != "" {
		return fmt.Errorf("node %q can not create pods that reference %s", node, what)
	}
	return nil
}

func (n *nodeRestriction) ownPod(namespace, name, node, verb string) error {
	pod, err := n.pods.Pods(namespace).Get(name)
	if err != nil {
		return err
	}
	if pod.Spec.NodeName != node {
		return fmt.Errorf("node %q can only %s pods with spec.nodeName set to itself", node, verb)
	}
	return nil
}

func (n *nodeRestriction) podStatus(a admission.Attributes, node string) error {
	if a.GetOperation() != admission.Update {
		return fmt.Errorf("unexpected operation %q", a.GetOperation())
	}
	old, err := typed[*corev1.Pod](a.GetOldObject())
	if err != nil {
		return err
	}
	pod, err := typed[*corev1.Pod](a.GetObject())
	if err != nil {
		return err
	}
	switch {
	case old.Spec.NodeName != node:
		return fmt.Errorf("node %q can only update pod status for pods with spec.nodeName set to itself", node)
	case !labels.Equals(old.Labels, pod.Labels):
		return fmt.Errorf("node %q cannot update labels through pod status", node)
	// By these a node is let read claims.
	case !equality.Semantic.DeepEqual(old.Status.ResourceClaimStatuses, pod.Status.ResourceClaimStatuses):
		return fmt.Errorf("node %q cannot update resource claim statuses", node)
	case !equality.Semantic.DeepEqual(old.Status.ExtendedResourceClaimStatus, pod.Status.ExtendedResourceClaimStatus):
		return fmt.Errorf("node %q cannot update extended resource claim status", node)
	}
	return nil
}

// node keeps a node from drawing pods to itself that are to be elsewhere: by labels and taints.
func (n *nodeRestriction) node(a admission.Attributes, node string) error {
	name := a.GetName()
	o, isNode := a.GetObject().(*corev1.Node)
	if name == "" && isNode {
		name = o.Name
	}
	if name != node {
		return fmt.Errorf("node %q is not allowed to modify node %q", node, name)
	}
	if a.GetOperation() == admission.Delete {
		return nil // authorization does not let it come here
	}
	if !isNode {
		return fmt.Errorf("unexpected type %T", a.GetObject())
	}
	var before corev1.Node
	if a.GetOperation() == admission.Update {
		old, err := typed[*corev1.Node](a.GetOldObject())
		if err != nil {
			return err
		}
		before = *old
		if !equality.Semantic.DeepEqual(o.Spec.Taints, old.Spec.Taints) {
			return fmt.Errorf("node %q is not allowed to modify taints", node)
		}
		if !equality.Semantic.DeepEqual(o.OwnerReferences, old.OwnerReferences) {
			return fmt.Errorf("node %q is not allowed to modify ownerReferences", node)
		}
	}
	//nolint:staticcheck // deprecated, and still a way to what a node must not read
	if o.Spec.ConfigSource != nil && !equality.Semantic.DeepEqual(o.Spec.ConfigSource, before.Spec.ConfigSource) {
		return fmt.Errorf("node %q is not allowed to set configSource", node)
	}
	if wrong := forbiddenLabels(o.Labels, before.Labels); len(wrong) > 0 {
		return fmt.Errorf("node %q is not allowed to modify labels: %s", node, strings.Join(wrong, ", "))
	}
	return nil
}

// forbiddenLabels are those that differ and are not a node's to set: what starts with node-restriction.kubernetes.io,
// and those of Kubernetes that are not a kubelet's.
func forbiddenLabels(now, before map[string]string) []string {
	var wrong []string
	look := func(key string) {
		domain, _, has := strings.Cut(key, "/")
		below := func(of string) bool { return has && (domain == of || strings.HasSuffix(domain, "."+of)) }
		restricted := below(corev1.LabelNamespaceNodeRestriction)
		kubernetes := (below("kubernetes.io") || below("k8s.io")) && !kubeletapis.IsKubeletLabel(key)
		if (restricted || kubernetes) && !slices.Contains(wrong, key) {
			wrong = append(wrong, key)
		}
	}
	for key, value := range now {
		if old, had := before[key]; !had || old != value {
			look(key)
		}
	}
	for key := range before {
		if _, has := now[key]; !has {
			look(key)
		}
	}
	slices.Sort(wrong)
	return wrong
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

func lease(a admission.Attributes, node string) error {
	if a.GetNamespace() != corev1.NamespaceNodeLease {
		return fmt.Errorf("can only access leases in the %q system namespace", corev1.NamespaceNodeLease)
	}
	if a.GetOperation() == admission.Create {
		o, err := typed[*coordinationv1.Lease](a.GetObject())
		if err != nil {
			return err
		}
		return sameName(o.ObjectMeta, node, "lease")
	}
	return sameName(metav1.ObjectMeta{Name: a.GetName()}, node, "lease")
}

func csiNode(a admission.Attributes, node string) error {
	if a.GetOperation() == admission.Create {
		o, err := typed[*storagev1.CSINode](a.GetObject())
		if err != nil {
			return err
		}
		return sameName(o.ObjectMeta, node, "CSINode")
	}
	return sameName(metav1.ObjectMeta{Name: a.GetName()}, node, "CSINode")
}

func sameName(o metav1.ObjectMeta, node, what string) error {
	if o.Name != node {
		return fmt.Errorf("can only access %s with the same name as the requesting node", what)
	}
	return nil
}

// slice has a node tell of its own devices alone.
func slice(a admission.Attributes, node string) error {
	o := a.GetObject()
	if a.GetOperation() == admission.Delete {
		o = a.GetOldObject() // of a collection, too, each is asked about
	}
	s, err := typed[*resourcev1.ResourceSlice](o)
	if err != nil {
		return err
	}
	if s.Spec.NodeName == nil || *s.Spec.NodeName != node {
		return fmt.Errorf("can only create, change and delete ResourceSlices with the same NodeName as the requesting node")
	}
	return nil
}

// signingRequest has a node ask for certificates of its own name alone.
func signingRequest(a admission.Attributes) error {
	o, err := typed[*certificatesv1.CertificateSigningRequest](a.GetObject())
	if err != nil || a.GetOperation() != admission.Create {
		return err
	}
	if o.Spec.SignerName != certificatesv1.KubeletServingSignerName && o.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
		return nil
	}
	request, err := parseRequest(o.Spec.Request)
	if err != nil {
		return fmt.Errorf("unable to parse csr: %w", err)
	}
	if request.Subject.CommonName != a.GetUserInfo().GetName() {
		return fmt.Errorf("can only create a node CSR with CN=%s", a.GetUserInfo().GetName())
	}
	return nil
}

// token has a node ask for tokens of its pods alone, and for audiences that they use.
func (n *nodeRestriction) token(ctx context.Context, a admission.Attributes, node string) error {
	request, err := typed[*authenticationv1.TokenRequest](a.GetObject())
	if err != nil {
		return err
	}
	ref := request.Spec.BoundObjectRef
	if ref == nil || ref.APIVersion != "v1" || ref.Kind != "Pod" || ref.Name == "" {
		return fmt.Errorf("node requested token not bound to a pod")
	}
	if ref.UID == "" {
		return fmt.Errorf("node requested token with a pod binding without a uid")
	}
	pod, err := n.pods.Pods(a.GetNamespace()).Get(ref.Name)
	if err != nil {
		return err
	}
	if ref.UID != pod.UID {
		return fmt.Errorf("the UID in the bound object reference (%s) does not match the UID in record", ref.UID)
	}
	if pod.Spec.NodeName != node {
		return fmt.Errorf("node requested token bound to a pod scheduled on a different node")
	}
	if len(request.Spec.Audiences) > 1 {
		return fmt.Errorf("node may only request 0 or 1 audiences")
	}
	audience := strings.Join(request.Spec.Audiences, "")
	if n.usesAudience(pod, audience) {
		return nil
	}
	decision, _, err := n.given.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: a.GetUserInfo(), Verb: "request-serviceaccounts-token-audience", Namespace: a.GetNamespace(), APIVersion: "v1", Resource: audience,
		Name: a.GetName(), ResourceRequest: true,
	})
	if err == nil && decision == authorizer.DecisionAllow {
		return nil
	}
	return fmt.Errorf("audience %q not found in pod spec volume, %s is not authorized to request tokens for this audience", audience, a.GetUserInfo().GetName())
}

// usesAudience tells whether a volume of a pod, or the driver of one, has tokens for an audience.
func (n *nodeRestriction) usesAudience(pod *corev1.Pod, audience string) bool {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(p corev1.VolumeProjection) bool {
			return p.ServiceAccountToken != nil && p.ServiceAccountToken.Audience == audience
		}) {
			return true
		}
		name := n.driverOf(pod, v)
		if name == "" {
			continue
		}
		driver, err := n.drivers.Get(name)
		if err == nil && slices.ContainsFunc(driver.Spec.TokenRequests, func(r storagev1.TokenRequest) bool { return r.Audience == audience }) {
			return true
		}
	}
	return false
}

// driverOf is the CSI driver of a volume, or nothing.
func (n *nodeRestriction) driverOf(pod *corev1.Pod, v *corev1.Volume) string {
	claim := ""
	switch {
	case v.CSI != nil:
		return v.CSI.Driver
	case v.PersistentVolumeClaim != nil:
		claim = v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		claim = pod.Name + "-" + v.Name
	default:
		return ""
	}
	c, err := n.claims.PersistentVolumeClaims(pod.Namespace).Get(claim)
	if err != nil {
		return ""
	}
	volume, err := n.volumes.Get(c.Spec.VolumeName)
	if err != nil || volume.Spec.CSI == nil {
		return ""
	}
	return volume.Spec.CSI.Driver
}

// certificateRequest has a node ask for certificates of its pods alone.
func (n *nodeRestriction) certificateRequest(a admission.Attributes, node string) error {
	if a.GetOperation() != admission.Create {
		return fmt.Errorf("unexpected operation %v", a.GetOperation())
	}
	o, err := typed[*certificatesv1.PodCertificateRequest](a.GetObject())
	if err != nil {
		return err
	}
	if string(o.Spec.NodeName) != node {
		return fmt.Errorf("PodCertificateRequest.Spec.NodeName=%q, which is not the requesting node %q", o.Spec.NodeName, node)
	}
	object, err := n.nodes.Get(node)
	if err != nil {
		return err
	}
	pod, err := n.pods.Pods(a.GetNamespace()).Get(o.Spec.PodName)
	if err != nil {
		return err
	}
	account, err := n.accounts.ServiceAccounts(a.GetNamespace()).Get(o.Spec.ServiceAccountName)
	if err != nil {
		return err
	}
	switch {
	case object.UID != o.Spec.NodeUID, pod.UID != o.Spec.PodUID, account.UID != o.Spec.ServiceAccountUID:
		return fmt.Errorf("a UID of the request is not that of the node, pod or service account that it names")
	case pod.Spec.NodeName != node:
		return fmt.Errorf("pod %q is not running on node %q named in the PodCertificateRequest", pod.Name, node)
	case isMirror(pod):
		return fmt.Errorf("pod %q is a mirror pod", pod.Name)
	case pod.Spec.ServiceAccountName != o.Spec.ServiceAccountName:
		return fmt.Errorf("pod %q has service account %q, not %q", pod.Name, pod.Spec.ServiceAccountName, o.Spec.ServiceAccountName)
	}
	return nil
}
