package admission

import (
	"fmt"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	kubeletapis "k8s.io/kubelet/pkg/apis"
)

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
