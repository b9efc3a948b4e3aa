package admission

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/admission"
)

// refusing is a webhook that refuses all, and what it is configured by.
func refusing(t *testing.T, kind, more string) string {
	t.Helper()
	service := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review map[string]any
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		uid := review["request"].(map[string]any)["uid"]
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(map[string]any{
			"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
			"response": map[string]any{"uid": uid, "allowed": false, "status": map[string]any{"message": "not today"}},
		}); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(service.Close)
	bundle := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: service.Certificate().Raw}))
	return "{apiVersion: admissionregistration.k8s.io/v1, kind: " + kind + ", metadata: {name: w}, webhooks: [{name: w.example.org, " +
		"clientConfig: {url: '" + service.URL + "', caBundle: " + bundle + "}, admissionReviewVersions: [v1], " + more +
		"rules: [{apiGroups: [''], apiVersions: [v1], operations: [CREATE], resources: [pods]}]}]}"
}

// TestWebhooks has webhooks refuse that were stored without any default: they must not match nothing.
func TestWebhooks(t *testing.T) {
	const plainNamespace = "{apiVersion: v1, kind: Namespace, metadata: {name: ns}}"
	for _, kind := range []string{"Validating", "Mutating"} {
		// sideEffects is required, and so are versions; all the rest has defaults.
		hook := refusing(t, kind+"WebhookConfiguration", "sideEffects: None, ")
		testRow{plugin: kind + "AdmissionWebhook", have: []string{plainNamespace, hook}, resource: "pods", object: pod, refused: "not today"}.test(t)
		testRow{plugin: kind + "AdmissionWebhook", have: []string{plainNamespace, hook}, resource: "configmaps", object: strings.Replace(pod, "Pod", "ConfigMap", 1)}.test(t)
		gone := refusing(t, kind+"WebhookConfiguration", "sideEffects: None, timeoutSeconds: 1, ")
		gone = gone[:strings.Index(gone, "url: '")] + "url: 'https://127.0.0.1:1/', " + gone[strings.Index(gone, "caBundle"):]
		testRow{plugin: kind + "AdmissionWebhook", have: []string{plainNamespace, gone}, resource: "pods", object: pod, refused: "failed calling webhook"}.test(t)
	}
}

// TestPolicies has policies refuse, and change, that were stored without any default.
func TestPolicies(t *testing.T) {
	const plainNamespace = "{apiVersion: v1, kind: Namespace, metadata: {name: ns}}"
	const match = "matchConstraints: {resourceRules: [{apiGroups: [''], apiVersions: [v1], operations: [CREATE], resources: [pods]}]}"
	bind := func(kind, more string) string {
		return "{apiVersion: admissionregistration.k8s.io/v1, kind: " + kind + "AdmissionPolicyBinding, metadata: {name: b}, spec: {policyName: p" + more + "}}"
	}
	validating := "{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicy, metadata: {name: p}, spec: {" + match +
		", validations: [{expression: \"object.metadata.name != 'p'\", message: not by this name}]}}"
	p, _ := start(t, "ValidatingAdmissionPolicy", plainNamespace, validating, bind("Validating", ", validationActions: [Deny]"))
	until(t, func() bool {
		err := run(t.Context(), p, ask{operation: admission.Create, resource: "pods", object: parse(t, pod)}.attributes())
		return err != nil && strings.Contains(err.Error(), "not by this name")
	})
	other := strings.Replace(pod, "name: p", "name: q", 1)
	if err := run(t.Context(), p, ask{operation: admission.Create, resource: "pods", object: parse(t, other)}.attributes()); err != nil {
		t.Errorf("what the policy allows is refused: %v", err)
	}

	broken := strings.Replace(validating, "object.metadata.name != 'p'", "object.spec.nothing == 1", 1)
	p, _ = start(t, "ValidatingAdmissionPolicy", plainNamespace, broken, bind("Validating", ", validationActions: [Deny]"))
	until(t, func() bool {
		err := run(t.Context(), p, ask{operation: admission.Create, resource: "pods", object: parse(t, pod)}.attributes())
		return err != nil && strings.Contains(err.Error(), "no such key")
	})
}

// TestMutatingPolicy has a policy that was stored without any default be about what is written. The server of this test
// tells of no schema of it, so that it is refused: what cannot be changed must not pass unchanged.
func TestMutatingPolicy(t *testing.T) {
	p, _ := start(t, "MutatingAdmissionPolicy", "{apiVersion: v1, kind: Namespace, metadata: {name: ns}}",
		"{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingAdmissionPolicy, metadata: {name: p}, spec: {matchConstraints: {resourceRules: ["+
			"{apiGroups: [''], apiVersions: [v1], operations: [CREATE], resources: [pods]}]}, reinvocationPolicy: Never, mutations: [{patchType: JSONPatch, "+
			"jsonPatch: {expression: \"[JSONPatch{op: 'add', path: '/spec/hostname', value: 'changed'}]\"}}]}}",
		"{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingAdmissionPolicyBinding, metadata: {name: b}, spec: {policyName: p}}")
	until(t, func() bool {
		o, ok := parse(t, pod).(*corev1.Pod)
		err := run(t.Context(), p, ask{operation: admission.Create, resource: "pods", object: o}.attributes())
		return ok && err != nil && strings.Contains(err.Error(), "Kind=Pod not found")
	})
}

// until does something until it is so, at most a minute.
func until(t *testing.T, so func() bool) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) { return so(), nil }); err != nil {
		t.Error("it never was so")
	}
}

// TestQuota refuses what a quota has no room for.
func TestQuota(t *testing.T) {
	quota := func(hard, used, more string) string {
		return "{apiVersion: v1, kind: ResourceQuota, metadata: {namespace: ns, name: q}, spec: {hard: {" + hard + "}" + more + "}, status: {hard: {" + hard + "}, used: {" + used + "}}}"
	}
	configMap := "{apiVersion: v1, kind: ConfigMap, metadata: {namespace: ns, name: m}}"
	nodePort := "{apiVersion: v1, kind: Service, metadata: {namespace: ns, name: s}, spec: {type: NodePort, ports: [{port: 1}, {port: 2}]}}"
	for _, r := range []testRow{
		{have: []string{quota("pods: 2", "pods: 1", "")}, resource: "pods", object: pod},
		{have: []string{quota("pods: 1", "pods: 1", "")}, resource: "pods", object: pod, refused: "exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"},
		{have: []string{quota("requests.cpu: 1", "requests.cpu: 0", "")}, resource: "pods", object: resources("requests: {cpu: 2}"), refused: "exceeded quota"},
		{have: []string{quota("cpu: 1", "cpu: 0", "")}, resource: "pods", object: pod, refused: "must specify cpu for: c"},
		{have: []string{quota("limits.memory: 1Gi", "limits.memory: 512Mi", "")}, resource: "pods", object: resources("limits: {memory: 1Gi}"), refused: "exceeded quota"},
		{have: []string{quota("requests.example.org/gpu: 1", "requests.example.org/gpu: 1", "")}, resource: "pods", object: resources("requests: {example.org/gpu: 1}"), refused: "exceeded quota"},
		{have: []string{quota("pods: 0", "pods: 0", ", scopes: [BestEffort]")}, resource: "pods", object: pod, refused: "exceeded quota"},
		{have: []string{quota("pods: 0", "pods: 0", ", scopes: [NotBestEffort]")}, resource: "pods", object: pod},
		{have: []string{quota("pods: 0", "pods: 0", ", scopes: [Terminating]")}, resource: "pods", object: with(pod, "spec", "activeDeadlineSeconds: 5"), refused: "exceeded quota"},
		{
			have:     []string{quota("pods: 0", "pods: 0", ", scopeSelector: {matchExpressions: [{scopeName: PriorityClass, operator: In, values: [high]}]}")},
			resource: "pods", object: with(pod, "spec", "priorityClassName: high"), refused: "exceeded quota",
		},
		{
			have:     []string{quota("pods: 0", "pods: 0", ", scopeSelector: {matchExpressions: [{scopeName: PriorityClass, operator: In, values: [high]}]}")},
			resource: "pods", object: with(pod, "spec", "priorityClassName: low"),
		},
		{have: []string{quota("count/pods: 1", "count/pods: 1", "")}, resource: "pods", object: pod, refused: "exceeded quota"},
		{have: []string{quota("configmaps: 1", "configmaps: 1", "")}, resource: "configmaps", object: configMap, refused: "exceeded quota"},
		{have: []string{quota("count/configmaps: 1", "count/configmaps: 1", "")}, resource: "configmaps", object: configMap, refused: "exceeded quota"},
		{have: []string{quota("services.nodeports: 1", "services.nodeports: 0", "")}, resource: "services", object: nodePort, refused: "exceeded quota"},
		{have: []string{quota("requests.storage: 1Gi", "requests.storage: 1Mi", "")}, resource: "persistentvolumeclaims", object: claim, refused: "exceeded quota"},
		{
			have:     []string{quota("fast.storageclass.storage.k8s.io/requests.storage: 1", "fast.storageclass.storage.k8s.io/requests.storage: 0", "")},
			resource: "persistentvolumeclaims", object: with(claim, "spec", "storageClassName: fast"), refused: "exceeded quota",
		},
		{
			have:     []string{quota("fast.storageclass.storage.k8s.io/requests.storage: 1", "fast.storageclass.storage.k8s.io/requests.storage: 0", "")},
			resource: "persistentvolumeclaims", object: with(claim, "spec", "storageClassName: slow"),
		},
	} {
		r.plugin = "ResourceQuota"
		r.test(t)
	}
}
