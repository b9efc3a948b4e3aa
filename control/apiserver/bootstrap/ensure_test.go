package bootstrap

import (
	"context"
	"encoding/pem"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
)

func certificate(bytes string) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(bytes)})
}

func writes(client *fake.Clientset) []string {
	var all []string
	for _, a := range client.Actions() {
		if !slices.Contains([]string{"get", "list", "watch"}, a.GetVerb()) {
			all = append(all, a.GetVerb()+" "+a.GetResource().Resource)
		}
	}
	return all
}

// TestEnsure makes everything once, and writes nothing the second time.
func TestEnsure(t *testing.T) {
	client := fake.NewClientset()
	o := Options{ClientCA: certificate("a"), RequestHeaderCA: certificate("b"), RequestHeaderNames: []string{"front-proxy"}}
	if err := Ensure(t.Context(), client, o); err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, w := range writes(client) {
		count[w]++
	}
	for what, least := range map[string]int{
		"create namespaces": 4, "create clusterroles": 70, "create clusterrolebindings": 50, "create roles": 7, "create rolebindings": 7,
		"create priorityclasses": 2, "create flowschemas": 11, "create prioritylevelconfigurations": 8, "create configmaps": 1,
	} {
		if count[what] < least {
			t.Errorf("%s: %d times, want at least %d", what, count[what], least)
		}
	}
	client.ClearActions()
	if err := Ensure(t.Context(), client, o); err != nil {
		t.Fatal(err)
	}
	// The first time no annotation of flow control said anything; from then on nothing is to be written.
	client.ClearActions()
	if err := Ensure(t.Context(), client, o); err != nil || len(writes(client)) > 0 {
		t.Errorf("what is right is written again: %v, %v", writes(client), err)
	}
	client.ClearActions()
	o.Same = true
	if err := Ensure(t.Context(), client, o); err != nil {
		t.Error(err)
	}
	for _, a := range client.Actions() {
		switch of := a.GetResource(); of.Resource {
		case "namespaces", "priorityclasses", "configmaps":
		default:
			t.Errorf("what is as it was left is looked at: %s %s", a.GetVerb(), of.Resource)
		}
	}
}

// TestBetween has somebody make what was not there when all that there is was read. Nothing else is asked for by name.
func TestBetween(t *testing.T) {
	client := fake.NewClientset()
	theirs := map[string]runtime.Object{
		"clusterroles": &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "view", Labels: map[string]string{"whose": "theirs"}}},
		"flowschemas":  &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: "exempt", Labels: map[string]string{"whose": "theirs"}}},
	}
	client.PrependReactor("create", "*", func(a ktesting.Action) (bool, runtime.Object, error) {
		o, ok := theirs[a.GetResource().Resource]
		if !ok || a.(ktesting.CreateAction).GetObject().(metav1.Object).GetName() != o.(metav1.Object).GetName() {
			return false, nil, nil
		}
		delete(theirs, a.GetResource().Resource)
		if err := client.Tracker().Add(o); err != nil {
			t.Error(err)
		}
		return false, nil, nil
	})
	if err := Ensure(t.Context(), client, Options{ClientCA: certificate("a")}); err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, a := range client.Actions() {
		count[a.GetVerb()+" "+a.GetResource().Resource]++
	}
	for _, what := range []string{"clusterroles", "clusterrolebindings", "flowschemas", "prioritylevelconfigurations"} {
		want := map[string]int{"clusterroles": 1, "flowschemas": 1}[what]
		if is := count["get "+what]; is != want {
			t.Errorf("%s are read by name %d times, want %d", what, is, want)
		}
	}
	role, err := client.RbacV1().ClusterRoles().Get(t.Context(), "view", metav1.GetOptions{})
	if err != nil || role.Labels["whose"] != "theirs" || role.AggregationRule == nil {
		t.Errorf("the role is %+v, %v", role, err)
	}
	schema, err := client.FlowcontrolV1().FlowSchemas().Get(t.Context(), "exempt", metav1.GetOptions{})
	if err != nil || schema.Labels["whose"] != "theirs" || len(schema.Spec.Rules) == 0 {
		t.Errorf("the schema is %+v, %v", schema, err)
	}
}

// TestTriesAll goes on after an error, and tells of it.
func TestTriesAll(t *testing.T) {
	client := fake.NewClientset()
	refused := errors.New("no")
	client.PrependReactor("create", "namespaces", func(ktesting.Action) (bool, runtime.Object, error) { return true, nil, refused })
	if err := Ensure(t.Context(), client, Options{}); !errors.Is(err, refused) {
		t.Errorf("error is %v", err)
	}
	if _, err := client.RbacV1().ClusterRoles().Get(t.Context(), "cluster-admin", metav1.GetOptions{}); err != nil {
		t.Errorf("roles are not made when namespaces cannot be: %v", err)
	}
}

// TestReconcile puts right what differs, but for what is protected or was added.
func TestReconcile(t *testing.T) {
	protected := map[string]string{rbacv1.AutoUpdateAnnotationKey: "false"}
	ref := func(kind, name string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
	}
	mine := rbacv1.PolicyRule{APIGroups: []string{"example.org"}, Resources: []string{"mine"}, Verbs: []string{"get"}}
	me := rbacv1.Subject{Kind: "User", APIGroup: rbacv1.GroupName, Name: "me"}
	client := fake.NewClientset(
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "system:kube-dns", Annotations: protected}},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "system:node-proxier"}, Rules: []rbacv1.PolicyRule{mine}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "cluster-admin"}, Subjects: []rbacv1.Subject{me}, RoleRef: ref("ClusterRole", "cluster-admin")},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "system:discovery"}, Subjects: []rbacv1.Subject{me}, RoleRef: ref("ClusterRole", "view")},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "system:controller:token-cleaner", Annotations: protected},
			RoleRef:    ref("Role", "system:controller:token-cleaner"),
		},
	)
	if err := Ensure(t.Context(), client, Options{}); err != nil {
		t.Fatal(err)
	}
	rbac := client.RbacV1()
	role := func(name string) *rbacv1.ClusterRole {
		o, err := rbac.ClusterRoles().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	bound := func(name string) *rbacv1.ClusterRoleBinding {
		o, err := rbac.ClusterRoleBindings().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	if o := role("system:kube-dns"); len(o.Rules) > 0 {
		t.Errorf("a protected role is changed: %+v", o)
	}
	if o := role("system:node-proxier"); len(o.Rules) < 2 || o.Rules[0].Resources[0] != "mine" || o.Annotations[rbacv1.AutoUpdateAnnotationKey] != "true" {
		t.Errorf("a role lacks its rules, or what was added: %+v", o)
	}
	if o := bound("cluster-admin"); len(o.Subjects) != 2 || o.Subjects[0] != me || o.Subjects[1].Name != "system:masters" {
		t.Errorf("a binding lacks its subjects, or who was added: %+v", o)
	}
	if o := bound("system:discovery"); o.RoleRef.Name != "system:discovery" || len(o.Subjects) != 1 || o.Subjects[0].Name != "system:authenticated" {
		t.Errorf("a binding to another role stays: %+v", o)
	}
	kept, err := rbac.RoleBindings("kube-system").Get(t.Context(), "system:controller:token-cleaner", metav1.GetOptions{})
	if err != nil || len(kept.Subjects) > 0 {
		t.Errorf("a protected binding is changed: %+v, %v", kept, err)
	}
	if o := role("admin"); o.AggregationRule.ClusterRoleSelectors[0].MatchLabels["rbac.authorization.k8s.io/aggregate-to-admin"] != "true" {
		t.Errorf("admin is not aggregated: %+v", o)
	}
	if o := role("edit"); o.Labels["rbac.authorization.k8s.io/aggregate-to-admin"] != "true" {
		t.Errorf("edit is no part of admin: %+v", o)
	}
}

// TestFlowControl keeps mandatory objects as they must be, and suggested ones as their owner wants them.
func TestFlowControl(t *testing.T) {
	schema := func(name string, generation int64, annotation string) *flowcontrolv1.FlowSchema {
		o := &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: generation}, Spec: flowcontrolv1.FlowSchemaSpec{MatchingPrecedence: 77}}
		if annotation != "" {
			o.Annotations = map[string]string{flowcontrolv1.AutoUpdateAnnotationKey: annotation}
		}
		return o
	}
	client := fake.NewClientset(
		schema("catch-all", 5, "false"), schema("probes", 1, ""), schema("service-accounts", 2, ""),
		schema("global-default", 2, "true"), schema("system-nodes", 1, "false"),
	)
	if err := Ensure(t.Context(), client, Options{}); err != nil {
		t.Fatal(err)
	}
	for name, changed := range map[string]bool{
		"catch-all": true, "probes": true, "service-accounts": false, "global-default": true, "system-nodes": false,
	} {
		o, err := client.FlowcontrolV1().FlowSchemas().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		says := o.Annotations[flowcontrolv1.AutoUpdateAnnotationKey]
		if (o.Spec.MatchingPrecedence != 77) != changed || (says == "true") != changed {
			t.Errorf("%s: precedence %d, annotation %q, want it changed: %v", name, o.Spec.MatchingPrecedence, says, changed)
		}
	}
}

// TestTrust adds authorities to those of other servers, and takes none away.
func TestTrust(t *testing.T) {
	client := fake.NewClientset(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: trustName},
		Data: map[string]string{
			"client-ca-file": string(certificate("old")), "requestheader-allowed-names": `["other"]`, "requestheader-group-headers": "garbage",
		},
	})
	o := Options{ClientCA: certificate("new"), RequestHeaderCA: certificate("proxy"), RequestHeaderNames: []string{"front-proxy"}}
	if err := Ensure(t.Context(), client, o); err != nil {
		t.Fatal(err)
	}
	have, err := client.CoreV1().ConfigMaps("kube-system").Get(t.Context(), trustName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"client-ca-file":              string(certificate("old")) + string(certificate("new")),
		"requestheader-allowed-names": `["other","front-proxy"]`,
		"requestheader-group-headers": `["X-Remote-Group"]`, "requestheader-username-headers": `["X-Remote-User"]`,
		"requestheader-client-ca-file": string(certificate("proxy")),
	} {
		if have.Data[name] != want {
			t.Errorf("%s is %q, want %q", name, have.Data[name], want)
		}
	}
}

// TestRetired takes an authority back that has retired, where it was published, and leaves those of others.
func TestRetired(t *testing.T) {
	root := func(namespace string, certs ...string) *corev1.ConfigMap {
		var text string
		for _, c := range certs {
			text += string(certificate(c))
		}
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: rootName}, Data: map[string]string{rootKey: text, "more": "stays"}}
	}
	trust := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: trustName},
		Data:       map[string]string{"client-ca-file": string(certificate("old")) + string(certificate("other"))},
	}
	client := fake.NewClientset(trust, root("a", "old"), root("b", "old", "other"), root("c", "old", "new"))
	o := Options{ClientCA: certificate("new"), RequestHeaderCA: certificate("proxy"), Retired: append(certificate("old"), certificate("proxy")...)}
	if err := Ensure(t.Context(), client, o); err != nil {
		t.Fatal(err)
	}
	if err := EnsureRoots(t.Context(), client, o.ClientCA, o.Retired); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ namespace, name, key, want string }{
		{"kube-system", trustName, "client-ca-file", string(certificate("other")) + string(certificate("new"))},
		// What is trusted has not retired, whatever is said.
		{"kube-system", trustName, "requestheader-client-ca-file", string(certificate("proxy"))},
		{"a", rootName, rootKey, string(certificate("new"))},
		{"b", rootName, rootKey, string(certificate("other")) + string(certificate("new"))},
		{"c", rootName, rootKey, string(certificate("new"))},
		{"a", rootName, "more", "stays"},
	} {
		have, err := client.CoreV1().ConfigMaps(c.namespace).Get(t.Context(), c.name, metav1.GetOptions{})
		if err != nil || have.Data[c.key] != c.want {
			t.Errorf("%s/%s: %s is %q, %v, want %q", c.namespace, c.name, c.key, have.Data[c.key], err, c.want)
		}
	}
}

// TestBounded ends with its context.
func TestBounded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	client := fake.NewClientset()
	client.PrependReactor("*", "clusterroles", func(ktesting.Action) (bool, runtime.Object, error) { return true, nil, ctx.Err() })
	cancel()
	if err := Ensure(ctx, client, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
}

func TestParseRoles(t *testing.T) {
	for text, want := range map[string]string{
		"  get core pods":             "before any role",
		"role a\n  get pods":          "a rule is",
		"role a\n  to nobody":         "is no user:",
		"role a\n  to sa:name":        "is no sa:",
		"role a\n  binding b":         "wants a name and subjects",
		"role a\n  get core pods,":    "goes on",
		"role a\n  get core a b c":    "a rule is",
		"role a\n  get,read core a b": "",
	} {
		_, err := parseRoles(text)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	roles, err := parseRoles("# nothing\nrole ns/a\n  read,write core,apps a,\n   b c\n  get urls /x\n  to user:system:x sa:n/m\n")
	if err != nil || len(roles) != 1 {
		t.Fatal(roles, err)
	}
	r := roles[0]
	if r.namespace != "ns" || r.name != "a" || len(r.rules) != 2 || len(r.rules[0].Verbs) != 8 || r.rules[0].APIGroups[0] != "" ||
		!slices.Equal(r.rules[0].Resources, []string{"a", "b"}) || r.bindings[0].subjects[0].Name != "system:x" || r.ref().Kind != "Role" {
		t.Errorf("%+v", r)
	}
}
