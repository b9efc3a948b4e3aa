package admission

import (
	"crypto/x509/pkix"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

func TestNodeRestriction(t *testing.T) {
	const me = "system:node:one"
	mine := "{apiVersion: v1, kind: Pod, metadata: {namespace: ns, name: mine, uid: p}, spec: {nodeName: one, serviceAccountName: robot, containers: [{name: c}], " +
		"volumes: [{name: v, projected: {sources: [{serviceAccountToken: {audience: vault}}]}}]}}"
	other := strings.NewReplacer("nodeName: one", "nodeName: two", "name: mine", "name: other").Replace(mine)
	node := "{apiVersion: v1, kind: Node, metadata: {name: one, uid: n1, labels: {a: b}}, spec: {taints: [{key: t, effect: NoSchedule}]}}"
	have := []string{mine, other, node, "{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: ns, name: robot, uid: s}}"}
	mirror := "{apiVersion: v1, kind: Pod, metadata: {namespace: ns, name: m, annotations: {kubernetes.io/config.mirror: x}, ownerReferences: [" +
		"{apiVersion: v1, kind: Node, name: one, uid: n1, controller: true}]}, spec: {nodeName: one, containers: [{name: c}]}}"
	label := func(text string) string { return strings.Replace(node, "a: b", "a: b, "+text, 1) }
	token := func(spec string) string {
		return "{apiVersion: authentication.k8s.io/v1, kind: TokenRequest, metadata: {namespace: ns, name: robot}, spec: {" + spec + "}}"
	}
	lease := "{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {namespace: kube-node-lease, name: one}}"
	slice := "{apiVersion: resource.k8s.io/v1, kind: ResourceSlice, metadata: {name: s}, spec: {nodeName: one, driver: d}}"
	request := func(name string) string {
		return "{apiVersion: certificates.k8s.io/v1, kind: CertificateSigningRequest, metadata: {name: r}, spec: {signerName: kubernetes.io/kubelet-serving, request: " +
			signingText(t, pkix.Name{CommonName: name}) + "}}"
	}
	certificate := "{apiVersion: certificates.k8s.io/v1, kind: PodCertificateRequest, metadata: {namespace: ns, name: r}, spec: {podName: mine, podUID: p, " +
		"nodeName: one, nodeUID: n1, serviceAccountName: robot, serviceAccountUID: s}}"
	claimOf := func(status string) string {
		return "{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {namespace: ns, name: c}, status: {" + status + "}}"
	}
	update, remove := admission.Update, admission.Delete
	swap := strings.NewReplacer
	for _, r := range []testRow{
		{resource: "pods", object: mirror},
		{resource: "pods", object: pod, refused: "can only create mirror pods"},
		{resource: "pods", object: swap("nodeName: one", "nodeName: two").Replace(mirror), refused: "spec.nodeName set to itself"},
		{resource: "pods", object: swap("uid: n1", "uid: x").Replace(mirror), refused: "UID mismatch"},
		{resource: "pods", object: swap(", controller: true", "").Replace(mirror), refused: "owner reference set to itself"},
		{resource: "pods", object: with(mirror, "spec", "volumes: [{name: v, secret: {secretName: s}}]"), refused: "can not create pods that reference secrets"},
		{resource: "pods", object: with(mirror, "spec", "volumes: [{name: v, configMap: {name: s}}]"), refused: "reference configmaps"},
		{resource: "pods", object: with(mirror, "spec", "serviceAccountName: admin"), refused: "reference serviceaccounts"},
		{resource: "pods", operation: remove, old: mine},
		{resource: "pods", operation: remove, old: other, refused: "can only delete pods"},
		{resource: "pods", operation: update, object: mine, old: mine, refused: "unexpected operation"},
		{resource: "pods/exec", object: mine, refused: "unexpected pod subresource"},
		{resource: "pods/status", operation: update, object: mine, old: mine},
		{resource: "pods/status", operation: update, object: other, old: other, refused: "can only update pod status"},
		{resource: "pods/status", operation: update, object: swap("uid: p", "uid: p, labels: {a: b}").Replace(mine), old: mine, refused: "cannot update labels"},
		{resource: "pods/eviction", object: "{apiVersion: policy/v1, kind: Eviction, metadata: {namespace: ns, name: mine}}"},
		{resource: "pods/eviction", object: "{apiVersion: policy/v1, kind: Eviction, metadata: {namespace: ns, name: other}}", refused: "can only evict"},
		{resource: "nodes", operation: update, object: label("c: d"), old: node},
		{resource: "nodes", operation: update, object: label("kubernetes.io/os: linux"), old: node},
		{resource: "nodes", operation: update, object: label("node-role.kubernetes.io/control-plane: ''"), old: node, refused: "not allowed to modify labels"},
		{resource: "nodes", operation: update, object: label("node-restriction.kubernetes.io/a: b"), old: node, refused: "not allowed to modify labels"},
		{resource: "nodes", operation: update, object: label("a.node-restriction.kubernetes.io/a: b"), old: node, refused: "not allowed to modify labels"},
		{resource: "nodes", operation: update, object: node, old: label("node-restriction.kubernetes.io/a: b"), refused: "not allowed to modify labels"},
		{resource: "nodes", operation: update, object: swap("key: t", "key: u").Replace(node), old: node, refused: "modify taints"},
		{resource: "nodes", operation: update, object: swap("name: one", "name: two").Replace(node), old: node, refused: "not allowed to modify node"},
		{resource: "nodes", object: swap("name: one", "name: two").Replace(node), refused: "not allowed to modify node"},
		{resource: "nodes", object: label("node-role.kubernetes.io/x: ''"), refused: "not allowed to modify labels"},
		{resource: "nodes", operation: remove, old: swap("name: one", "name: two").Replace(node), refused: "not allowed to modify node"},
		{resource: "persistentvolumeclaims/status", operation: update, object: claimOf("capacity: {storage: 2Gi}"), old: claimOf("capacity: {storage: 1Gi}")},
		{resource: "persistentvolumeclaims/status", operation: update, object: claimOf("phase: Bound"), old: claimOf("phase: Lost"), refused: "not allowed to update fields"},
		{resource: "serviceaccounts/token", object: token("audiences: [vault], boundObjectRef: {apiVersion: v1, kind: Pod, name: mine, uid: p}")},
		{resource: "serviceaccounts/token", object: token("audiences: [bank], boundObjectRef: {apiVersion: v1, kind: Pod, name: mine, uid: p}"), refused: "audience"},
		{resource: "serviceaccounts/token", object: token("audiences: [vault], boundObjectRef: {apiVersion: v1, kind: Pod, name: mine, uid: q}"), refused: "does not match"},
		{resource: "serviceaccounts/token", object: token("audiences: [vault], boundObjectRef: {apiVersion: v1, kind: Pod, name: mine}"), refused: "without a uid"},
		{resource: "serviceaccounts/token", object: token("audiences: [vault], boundObjectRef: {apiVersion: v1, kind: Pod, name: other, uid: p}"), refused: "different node"},
		{resource: "serviceaccounts/token", object: token("audiences: [vault]"), refused: "not bound to a pod"},
		{resource: "leases", object: lease},
		{resource: "leases", object: swap("name: one", "name: two").Replace(lease), refused: "same name"},
		{resource: "leases", operation: update, object: swap("kube-node-lease", "kube-system").Replace(lease), old: lease, refused: "can only access leases"},
		{resource: "csinodes", object: "{apiVersion: storage.k8s.io/v1, kind: CSINode, metadata: {name: two}}", refused: "same name"},
		{resource: "resourceslices", object: slice},
		{resource: "resourceslices", object: swap("nodeName: one", "nodeName: two").Replace(slice), refused: "same NodeName"},
		{resource: "resourceslices", operation: remove, old: swap("nodeName: one", "nodeName: two").Replace(slice), refused: "same NodeName"},
		{resource: "certificatesigningrequests", object: request(me)},
		{resource: "certificatesigningrequests", object: request("system:node:two"), refused: "can only create a node CSR with CN=system:node:one"},
		{resource: "podcertificaterequests", object: certificate},
		{resource: "podcertificaterequests", object: swap("podUID: p", "podUID: q").Replace(certificate), refused: "a UID of the request"},
		{resource: "podcertificaterequests", object: swap("nodeName: one", "nodeName: two").Replace(certificate), refused: "not the requesting node"},
		{resource: "podcertificaterequests", object: swap("podName: mine", "podName: other").Replace(certificate), refused: "is not running on node"},
		{as: "system:node:", resource: "pods", object: mirror, refused: "could not determine node"},
		{as: "admin", resource: "nodes", operation: update, object: label("node-role.kubernetes.io/x: ''"), old: node},
	} {
		r.plugin, r.have = "NodeRestriction", have
		if r.as == "" {
			r.as = me
		}
		r.test(t)
	}
}

// TestTokenOfNewPod has a node get the token of a pod whose binding, or existence, the informer has not heard of yet.
func TestTokenOfNewPod(t *testing.T) {
	bound := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"},
		Spec: corev1.PodSpec{NodeName: "one", Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}},
		}}}}},
	}
	waits, before := bound.DeepCopy(), bound.DeepCopy()
	waits.Spec.NodeName, before.UID = "", "before"
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "u"},
	}}
	for name, heard := range map[string]*corev1.Pod{"nothing": nil, "no binding": waits, "the pod before": before} {
		f := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
		if heard != nil {
			if err := f.Core().V1().Pods().Informer().GetIndexer().Add(heard); err != nil {
				t.Fatal(err)
			}
		}
		n := &nodeRestriction{given: given{client: fake.NewClientset(bound)}, pods: f.Core().V1().Pods().Lister()}
		for node, allowed := range map[string]bool{"one": true, "two": false} {
			a := admission.NewAttributesRecord(request, nil, authenticationv1.SchemeGroupVersion.WithKind("TokenRequest"), "ns", "robot",
				corev1.SchemeGroupVersion.WithResource("serviceaccounts"), "token", admission.Create, nil, false, &user.DefaultInfo{Name: "system:node:" + node})
			if err := n.token(t.Context(), a, node); (err == nil) != allowed {
				t.Errorf("where the informer has heard of %s the answer to node %s is %v", name, node, err)
			}
		}
	}
}
