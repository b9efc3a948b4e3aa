package admission

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
)

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
