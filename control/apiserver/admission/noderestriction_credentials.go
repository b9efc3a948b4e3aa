package admission

import (
	"context"
	"fmt"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

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
	pod, err := n.podOf(ctx, a.GetNamespace(), ref)
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

// podOf is the pod that a token is for. A node may hear of a pod, or of its binding, before the informer here does; the
// store is asked then, for a node that is refused tries again a second later.
func (n *nodeRestriction) podOf(ctx context.Context, namespace string, ref *authenticationv1.BoundObjectReference) (*corev1.Pod, error) {
	pod, err := n.pods.Pods(namespace).Get(ref.Name)
	if apierrors.IsNotFound(err) || err == nil && (pod.UID != ref.UID || pod.Spec.NodeName == "") {
		return n.given.client.CoreV1().Pods(namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	}
	return pod, err
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
