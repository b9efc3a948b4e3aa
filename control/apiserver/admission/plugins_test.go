package admission

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/admission"
)

const (
	pod       = "{apiVersion: v1, kind: Pod, metadata: {namespace: ns, name: p}, spec: {containers: [{name: c, image: i}]}}"
	claim     = "{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {namespace: ns, name: c}, spec: {resources: {requests: {storage: 1Gi}}}}"
	account   = "{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: ns, name: default, uid: a}, imagePullSecrets: [{name: pull}]}"
	namespace = "{apiVersion: v1, kind: Namespace, metadata: {name: ns, labels: {pod-security.kubernetes.io/enforce: restricted}}}"
	ranges    = "{apiVersion: v1, kind: LimitRange, metadata: {namespace: ns, name: l}, spec: {limits: [" +
		"{type: Container, max: {cpu: 2}, min: {cpu: 100m}, default: {cpu: 1}, defaultRequest: {cpu: 500m}, maxLimitRequestRatio: {cpu: 4}}," +
		"{type: Pod, max: {cpu: 3}}, {type: PersistentVolumeClaim, max: {storage: 2Gi}, min: {storage: 1Gi}}]}}"
)

// with puts something into the first braces that follow a word.
func with(object, word, more string) string {
	before, after, _ := strings.Cut(object, word+": {")
	return before + word + ": {" + more + ", " + after
}

func resources(text string) string {
	return strings.Replace(pod, "image: i", "image: i, resources: {"+text+"}", 1)
}

func TestPlugins(t *testing.T) {
	storageClass := "{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: fast, annotations: {storageclass.kubernetes.io/is-default-class: 'true'}}, " +
		"provisioner: p, allowVolumeExpansion: %GROW}"
	grows, fixed := strings.Replace(storageClass, "%GROW", "true", 1), strings.Replace(storageClass, "%GROW", "false", 1)
	boundClaim := strings.Replace(with(claim, "spec", "storageClassName: fast"), "}}}}", "}}}, status: {phase: Bound}}", 1)
	larger := func(c string) string { return strings.Replace(c, "1Gi", "2Gi", 1) }
	priorityClass := "{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: high}, value: 1000, globalDefault: true}"
	runtimeClass := "{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: vm}, handler: vm, overhead: {podFixed: {cpu: 1}}, scheduling: {nodeSelector: {vm: 'yes'}}}"
	node := "{apiVersion: v1, kind: Node, metadata: {name: node, labels: {topology.kubernetes.io/zone: z}}}"
	service := "{apiVersion: v1, kind: Service, metadata: {namespace: ns, name: s}, spec: {externalIPs: [1.2.3.4]}}"
	ingress := "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {namespace: ns, name: i}, spec: {}}"
	ingressClass := "{apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {name: edge, annotations: {ingressclass.kubernetes.io/is-default-class: 'true'}}}"
	owned := func(name string) string {
		return "{apiVersion: v1, kind: ConfigMap, metadata: {namespace: ns, name: m, ownerReferences: [" +
			"{apiVersion: v1, kind: Pod, name: " + name + ", uid: u, blockOwnerDeletion: true}]}}"
	}
	plain := "{apiVersion: v1, kind: ConfigMap, metadata: {namespace: ns, name: m}}"
	update := admission.Update
	for _, r := range []testRow{
		{plugin: "LimitRanger", have: []string{ranges}, resource: "pods", object: pod, want: "cpu: 500m"},
		{plugin: "LimitRanger", have: []string{ranges}, resource: "pods", object: resources("limits: {cpu: 5}"), refused: "maximum cpu usage per Container is 2, but limit is 5"},
		{plugin: "LimitRanger", have: []string{ranges}, resource: "pods", object: resources("requests: {cpu: 1m}"), refused: "minimum cpu usage per Container is 100m, but request is 1m"},
		{plugin: "LimitRanger", have: []string{ranges}, resource: "pods", object: resources("requests: {cpu: 100m}, limits: {cpu: 2}"), refused: "max limit to request ratio"},
		{
			plugin: "LimitRanger", have: []string{ranges}, resource: "pods", refused: "maximum cpu usage per Pod is 3",
			object: strings.Replace(resources("limits: {cpu: 2}, requests: {cpu: 2}"), "]", ", {name: d, resources: {limits: {cpu: 2}, requests: {cpu: 2}}}]", 1),
		},
		{plugin: "LimitRanger", have: []string{ranges}, resource: "pods/resize", operation: update, object: resources("limits: {cpu: 5}"), old: pod, refused: "maximum cpu"},
		{plugin: "LimitRanger", have: []string{ranges}, resource: "persistentvolumeclaims", object: strings.Replace(claim, "1Gi", "3Gi", 1), refused: "maximum storage"},
		{plugin: "LimitRanger", have: []string{ranges}, resource: "persistentvolumeclaims", object: strings.Replace(claim, "1Gi", "1Mi", 1), refused: "minimum storage"},
		{plugin: "LimitRanger", have: []string{ranges}, resource: "persistentvolumeclaims", object: claim},
		{plugin: "LimitRanger", resource: "pods", object: pod},

		{plugin: "ServiceAccount", have: []string{account}, resource: "pods", object: pod, want: "serviceAccountName: default"},
		{plugin: "ServiceAccount", have: []string{account}, resource: "pods", object: pod, want: "mountPath: /var/run/secrets/kubernetes.io/serviceaccount"},
		{plugin: "ServiceAccount", have: []string{account}, resource: "pods", object: pod, want: "expirationSeconds: 3607"},
		{plugin: "ServiceAccount", have: []string{account}, resource: "pods", object: pod, want: "name: pull"},
		{plugin: "ServiceAccount", resource: "pods", object: pod, refused: "error looking up service account ns/default"},
		{plugin: "ServiceAccount", have: []string{account}, resource: "pods", object: with(pod, "spec", "serviceAccountName: admin"), refused: "service account ns/admin"},
		{
			plugin: "ServiceAccount", resource: "pods", refused: "may not reference service accounts",
			object: with(with(pod, "spec", "serviceAccountName: default"), "metadata", "annotations: {kubernetes.io/config.mirror: x}"),
		},
		{
			plugin: "ServiceAccount", have: []string{with(account, "metadata", "annotations: {kubernetes.io/enforce-mountable-secrets: 'true'}")}, resource: "pods",
			object: with(pod, "spec", "volumes: [{name: v, secret: {secretName: s}}]"), refused: "does not reference that secret",
		},

		{plugin: "TaintNodesByCondition", resource: "nodes", object: node, want: "key: node.kubernetes.io/not-ready"},

		{plugin: "PodSecurity", have: []string{namespace}, resource: "pods", object: pod, refused: "violates PodSecurity \"restricted:latest\""},
		{plugin: "PodSecurity", have: []string{strings.Replace(namespace, "restricted", "baseline", 1)}, resource: "pods", object: with(pod, "spec", "hostNetwork: true"), refused: "host namespaces"},
		{plugin: "PodSecurity", have: []string{strings.Replace(namespace, "restricted", "privileged", 1)}, resource: "pods", object: with(pod, "spec", "hostNetwork: true")},
		{plugin: "PodSecurity", resource: "pods", object: pod, refused: "failed to lookup namespace"},

		{plugin: "Priority", have: []string{priorityClass}, resource: "pods", object: pod, want: "priority: 1000"},
		{plugin: "Priority", resource: "pods", object: pod, want: "priority: 0"},
		{plugin: "Priority", resource: "pods", object: with(pod, "spec", "priorityClassName: system-node-critical"), want: "priority: 2000001000"},
		{plugin: "Priority", resource: "pods", object: with(pod, "spec", "priorityClassName: none"), refused: "no PriorityClass with name none was found"},
		{plugin: "Priority", resource: "pods", object: with(pod, "spec", "priority: 7"), refused: "must not be provided"},
		{plugin: "Priority", resource: "pods", operation: update, object: pod, old: with(pod, "spec", "priority: 7"), want: "priority: 7"},
		{plugin: "Priority", have: []string{priorityClass}, resource: "priorityclasses", object: strings.Replace(priorityClass, "high", "low", 1), refused: "already marked as default"},

		{plugin: "DefaultTolerationSeconds", resource: "pods", object: pod, want: "tolerationSeconds: 300"},
		{plugin: "DefaultStorageClass", have: []string{grows}, resource: "persistentvolumeclaims", object: claim, want: "storageClassName: fast"},
		{plugin: "DefaultStorageClass", have: []string{grows}, resource: "persistentvolumeclaims", object: with(claim, "spec", "storageClassName: ''"), want: "storageClassName: \"\""},
		{plugin: "StorageObjectInUseProtection", resource: "persistentvolumeclaims", object: claim, want: "kubernetes.io/pvc-protection"},
		{plugin: "StorageObjectInUseProtection", resource: "persistentvolumes", object: "{apiVersion: v1, kind: PersistentVolume, metadata: {name: v}}", want: "kubernetes.io/pv-protection"},

		{plugin: "PersistentVolumeClaimResize", have: []string{grows}, resource: "persistentvolumeclaims", operation: update, object: larger(boundClaim), old: boundClaim},
		{plugin: "PersistentVolumeClaimResize", have: []string{fixed}, resource: "persistentvolumeclaims", operation: update, object: larger(boundClaim), old: boundClaim, refused: "must support resize"},
		{plugin: "PersistentVolumeClaimResize", have: []string{grows}, resource: "persistentvolumeclaims", operation: update, object: larger(claim), old: claim, refused: "Only bound"},

		{plugin: "RuntimeClass", have: []string{runtimeClass}, resource: "pods", object: with(pod, "spec", "runtimeClassName: vm"), want: "overhead:\n    cpu: \"1\""},
		{plugin: "RuntimeClass", have: []string{runtimeClass}, resource: "pods", object: with(pod, "spec", "runtimeClassName: vm"), want: "vm: \"yes\""},
		{plugin: "RuntimeClass", resource: "pods", object: with(pod, "spec", "runtimeClassName: vm"), refused: "RuntimeClass \"vm\" not found"},
		{plugin: "RuntimeClass", resource: "pods", object: with(pod, "spec", "overhead: {cpu: 1}"), refused: "doesn't match"},
		{plugin: "RuntimeClass", have: []string{runtimeClass}, resource: "pods", object: with(pod, "spec", "runtimeClassName: vm, nodeSelector: {vm: 'no'}"), refused: "conflict"},

		{plugin: "DefaultIngressClass", have: []string{ingressClass}, resource: "ingresses", object: ingress, want: "ingressClassName: edge"},
		{plugin: "DenyServiceExternalIPs", resource: "services", object: service, refused: "Use of external IPs is denied"},
		{plugin: "DenyServiceExternalIPs", resource: "services", operation: update, object: service, old: service},
		{plugin: "PodTopologyLabels", have: []string{node}, resource: "pods", object: with(pod, "spec", "nodeName: node"), want: "topology.kubernetes.io/zone: z"},
		{
			plugin: "PodTopologyLabels", have: []string{node}, resource: "pods/binding", want: "topology.kubernetes.io/zone: z",
			object: "{apiVersion: v1, kind: Binding, metadata: {namespace: ns, name: p}, target: {kind: Node, name: node}}",
		},

		{plugin: "OwnerReferencesPermissionEnforcement", resource: "configmaps", operation: update, object: owned("p"), old: plain, refused: "can't delete"},
		{plugin: "OwnerReferencesPermissionEnforcement", as: "delete m", resource: "configmaps", operation: update, object: owned("p"), old: plain, refused: "can't set finalizers on"},
		{plugin: "OwnerReferencesPermissionEnforcement", as: "update p", resource: "configmaps", object: owned("p")},

		{plugin: "NamespaceLifecycle", resource: "pods", object: pod, refused: "not found"},
		{plugin: "NamespaceLifecycle", have: []string{strings.Replace(namespace, "}}}", "}}, status: {phase: Terminating}}", 1)}, resource: "pods", object: pod, refused: "is being terminated"},
		{plugin: "NamespaceLifecycle", resource: "namespaces", operation: admission.Delete, old: strings.Replace(namespace, "name: ns", "name: kube-system", 1), refused: "may not be deleted"},
	} {
		r.test(t)
	}
}

func signingText(t *testing.T, subject pkix.Name) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

func TestCertificates(t *testing.T) {
	request := func(signer string, subject pkix.Name) string {
		return "{apiVersion: certificates.k8s.io/v1, kind: CertificateSigningRequest, metadata: {name: r}, spec: {signerName: " + signer +
			", request: " + signingText(t, subject) + "}}"
	}
	const mine, client = "example.org/mine", "kubernetes.io/kube-apiserver-client"
	old := request(mine, pkix.Name{})
	signed := strings.TrimSuffix(old, "}") + ", status: {certificate: YQ==}}"
	asked := "{apiVersion: certificates.k8s.io/v1, kind: PodCertificateRequest, metadata: {name: r}, spec: {signerName: " + mine + "}}"
	failed := strings.TrimSuffix(asked, "}") + ", status: {conditions: [{type: Failed, status: 'True'}]}}"
	bundle := "{apiVersion: certificates.k8s.io/v1, kind: ClusterTrustBundle, metadata: {name: b}, spec: {signerName: example.org/mine}}"
	for _, r := range []testRow{
		{plugin: "CertificateApproval", as: "approve " + mine, resource: "certificatesigningrequests/approval", operation: admission.Update, object: old, old: old},
		{plugin: "CertificateApproval", as: "approve example.org/*", resource: "certificatesigningrequests/approval", operation: admission.Update, object: old, old: old},
		{plugin: "CertificateApproval", as: "eve", resource: "certificatesigningrequests/approval", operation: admission.Update, object: old, old: old, refused: "not permitted to approve"},
		{plugin: "CertificateApproval", as: "approve " + client, resource: "certificatesigningrequests/approval", operation: admission.Update, object: old, old: old, refused: "not permitted"},
		{plugin: "CertificateSigning", as: "sign " + mine, resource: "certificatesigningrequests/status", operation: admission.Update, object: signed, old: old},
		{plugin: "CertificateSigning", as: "eve", resource: "certificatesigningrequests/status", operation: admission.Update, object: signed, old: old, refused: "not permitted to sign"},
		{plugin: "CertificateSigning", as: "sign " + mine, resource: "podcertificaterequests/status", operation: admission.Update, object: failed, old: asked},
		{plugin: "CertificateSigning", as: "eve", resource: "podcertificaterequests/status", operation: admission.Update, object: asked, old: asked},
		{
			plugin: "CertificateSigning", as: "sign example.org/other", resource: "podcertificaterequests/status", operation: admission.Update,
			object: failed, old: asked, refused: "not permitted to sign",
		},
		{plugin: "ClusterTrustBundleAttest", as: "attest " + mine, resource: "clustertrustbundles", object: bundle},
		{plugin: "ClusterTrustBundleAttest", as: "eve", resource: "clustertrustbundles", object: bundle, refused: "not permitted to attest"},
		{plugin: "CertificateSubjectRestriction", resource: "certificatesigningrequests", object: request(client, pkix.Name{CommonName: "a"})},
		{
			plugin: "CertificateSubjectRestriction", resource: "certificatesigningrequests", refused: "system:masters group is not allowed",
			object: request(client, pkix.Name{Organization: []string{"a", "system:masters"}}),
		},
		{
			plugin: "CertificateSubjectRestriction", resource: "certificatesigningrequests", refused: "failed to parse CSR",
			object: "{apiVersion: certificates.k8s.io/v1, kind: CertificateSigningRequest, metadata: {name: r}, spec: {signerName: " + client + ", request: YQ==}}",
		},
	} {
		r.test(t)
	}
}
