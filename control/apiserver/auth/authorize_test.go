package auth

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
)

func who(name string, groups ...string) user.Info {
	return &user.DefaultInfo{Name: name, Groups: groups}
}

// ask is "VERB [GROUP:]RESOURCE[/SUBRESOURCE] [NAMESPACE/]NAME", or "VERB /path".
func ask(u user.Info, text string) authorizer.AttributesRecord {
	words := append(strings.Fields(text), "", "")
	a := authorizer.AttributesRecord{User: u, Verb: words[0]}
	if strings.HasPrefix(words[1], "/") {
		a.Path = words[1]
		return a
	}
	a.ResourceRequest = true
	group, resource, found := strings.Cut(words[1], ":")
	if !found {
		group, resource = "", words[1]
	}
	a.APIGroup = group
	a.Resource, a.Subresource, _ = strings.Cut(resource, "/")
	if namespace, name, found := strings.Cut(words[2], "/"); found {
		a.Namespace, a.Name = namespace, name
	} else {
		a.Name = words[2]
	}
	return a
}

func allows(t *testing.T, a authorizer.Authorizer, r authorizer.AttributesRecord) bool {
	t.Helper()
	decision, _, err := a.Authorize(t.Context(), r)
	// What knows of conditions must come to the same.
	if aware := a.ConditionsAwareAuthorize(t.Context(), r); aware.IsAllow() != (decision == authorizer.DecisionAllow) {
		t.Errorf("%+v: conditions make a difference: %v", r, aware)
	}
	return err == nil && decision == authorizer.DecisionAllow
}

func rule(verbs, groups, resources, names string) rbacv1.PolicyRule {
	split := func(s string) []string {
		if s == "" {
			return nil
		}
		return strings.Split(strings.ReplaceAll(s, "core", ""), ",")
	}
	return rbacv1.PolicyRule{Verbs: split(verbs), APIGroups: split(groups), Resources: split(resources), ResourceNames: split(names)}
}

// cluster has a few roles and who they are bound to.
func cluster() []runtime.Object {
	ref := func(kind, name string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
	}
	to := func(kind, namespace, name string) []rbacv1.Subject {
		return []rbacv1.Subject{{Kind: kind, Namespace: namespace, Name: name}}
	}
	return []runtime.Object{
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Rules: []rbacv1.PolicyRule{rule("get,list", "core", "pods,pods/log", "")}},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "scaler"}, Rules: []rbacv1.PolicyRule{
			rule("*", "*", "*/scale", ""), {Verbs: []string{"get"}, NonResourceURLs: []string{"/metrics", "/debug/*"}},
		}},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "all"}, Rules: []rbacv1.PolicyRule{rule("*", "*", "*", "")}},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "binder"}, Rules: []rbacv1.PolicyRule{rule("bind", rbacv1.GroupName, "clusterroles", "all")}},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "escalator"}, Rules: []rbacv1.PolicyRule{rule("escalate", rbacv1.GroupName, "clusterroles", "")}},
		&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "one"}, Rules: []rbacv1.PolicyRule{rule("get", "core", "secrets", "mine")}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Subjects: to("User", "", "rita"), RoleRef: ref("ClusterRole", "reader")},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Subjects: to("Group", "", "scalers"), RoleRef: ref("ClusterRole", "scaler")},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Subjects: to("User", "", "bob"), RoleRef: ref("ClusterRole", "binder")},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Subjects: to("User", "", "eve"), RoleRef: ref("ClusterRole", "escalator")},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "e"}, Subjects: to("User", "", "rita"), RoleRef: ref("ClusterRole", "missing")},
		&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}, Subjects: to("ServiceAccount", "", "robot"), RoleRef: ref("Role", "one")},
		&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b"}, Subjects: to("User", "", "nora"), RoleRef: ref("ClusterRole", "all")},
	}
}

func TestRBAC(t *testing.T) {
	a, _ := start(t, Options{}, cluster()...)
	rita, nora, robot := who("rita"), who("nora"), who("system:serviceaccount:ns:robot")
	scaler := who("sam", "scalers")
	for _, c := range []struct {
		u    user.Info
		ask  string
		want bool
	}{
		{rita, "get pods ns/a", true},
		{rita, "list pods", true},
		{rita, "get pods/log ns/a", true},
		{rita, "get pods/exec ns/a", false},
		{rita, "delete pods ns/a", false},
		{rita, "get metrics.k8s.io:pods ns/a", false},
		{rita, "get /metrics", false},
		{scaler, "update apps:deployments/scale ns/a", true},
		{scaler, "update apps:deployments ns/a", false},
		{scaler, "get /metrics", true},
		{scaler, "get /debug/pprof/heap", true},
		{scaler, "get /debugging", false},
		{scaler, "post /metrics", false},
		{robot, "get secrets ns/mine", true},
		{robot, "get secrets ns/other", false},
		{robot, "list secrets ns/", false},
		{robot, "get secrets other/mine", false},
		{who("system:serviceaccount:other:robot"), "get secrets ns/mine", false},
		{nora, "delete pods/exec ns/a", true},
		{nora, "delete pods other/a", false},
		{nora, "delete nodes a", false},
		{nora, "get /metrics", false},
		{who("nobody"), "get pods ns/a", false},
		{who("root", "system:masters"), "delete nodes a", true},
	} {
		if got := allows(t, a.Authorizer(), ask(c.u, c.ask)); got != c.want {
			t.Errorf("%s: %s: %v, want %v", c.u.GetName(), c.ask, got, c.want)
		}
	}
	resources, paths, incomplete, err := a.RuleResolver().RulesFor(t.Context(), scaler, "ns")
	if err != nil || incomplete || len(resources) != 1 || len(paths) != 1 {
		t.Errorf("what somebody may: %v, %v, %v, %v", resources, paths, incomplete, err)
	}
	// What is denied beneath all is a denial, so that nobody takes it for no opinion.
	if decision, _, _ := a.Authorizer().Authorize(t.Context(), ask(who("nobody"), "get pods ns/a")); decision == authorizer.DecisionAllow {
		t.Errorf("decision is %v", decision)
	}
}

func TestEscalation(t *testing.T) {
	a, _ := start(t, Options{}, cluster()...)
	e := NewEscalationCheck(a.Authorizer(), a.RBAC())
	ref := func(kind, name string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
	}
	pods, all := rule("get", "core", "pods", ""), rule("*", "*", "*", "")
	for _, c := range []struct {
		u         user.Info
		namespace string
		rules     []rbacv1.PolicyRule
		made      *rbacv1.AggregationRule
		want      bool
	}{
		{who("rita"), "", []rbacv1.PolicyRule{pods}, nil, true},
		{who("rita"), "ns", []rbacv1.PolicyRule{pods}, nil, true},
		{who("rita"), "", []rbacv1.PolicyRule{all}, nil, false},
		{who("rita"), "", []rbacv1.PolicyRule{rule("delete", "core", "pods", "")}, nil, false},
		{who("rita"), "", nil, &rbacv1.AggregationRule{}, false},
		{who("nora"), "ns", []rbacv1.PolicyRule{all}, nil, true},
		{who("nora"), "", []rbacv1.PolicyRule{pods}, nil, false},
		{who("nora"), "other", []rbacv1.PolicyRule{pods}, nil, false},
		{who("eve"), "", []rbacv1.PolicyRule{all}, &rbacv1.AggregationRule{}, true},
		{who("eve"), "ns", []rbacv1.PolicyRule{all}, nil, false}, // she may escalate cluster roles
		{who("x", "system:masters"), "", []rbacv1.PolicyRule{all}, nil, true},
		{who("bob"), "", []rbacv1.PolicyRule{all}, nil, false},
	} {
		err := e.CheckRole(request.WithUser(t.Context(), c.u), c.namespace, "new", c.rules, c.made)
		if (err == nil) != c.want {
			t.Errorf("%s makes a role of %v in %q: %v, want %v", c.u.GetName(), c.rules, c.namespace, err, c.want)
		}
	}
	for _, c := range []struct {
		u         user.Info
		namespace string
		ref       rbacv1.RoleRef
		want      bool
	}{
		{who("rita"), "", ref("ClusterRole", "reader"), true},
		{who("rita"), "", ref("ClusterRole", "all"), false},
		{who("rita"), "ns", ref("Role", "one"), false},
		{who("bob"), "", ref("ClusterRole", "all"), true},
		{who("bob"), "ns", ref("ClusterRole", "all"), true},
		{who("bob"), "", ref("ClusterRole", "reader"), false},
		{who("nora"), "ns", ref("ClusterRole", "all"), true},
		{who("nora"), "", ref("ClusterRole", "all"), false},
		{who("eve"), "", ref("ClusterRole", "all"), false},
		{who("rita"), "", ref("ClusterRole", "missing"), false},
		{who("rita"), "", ref("Group", "reader"), false},
		{who("x", "system:masters"), "", ref("ClusterRole", "missing"), true},
	} {
		err := e.CheckBinding(request.WithUser(t.Context(), c.u), c.namespace, "new", c.ref)
		if (err == nil) != c.want {
			t.Errorf("%s binds %v in %q: %v, want %v", c.u.GetName(), c.ref, c.namespace, err, c.want)
		}
	}
	if e.CheckRole(t.Context(), "", "new", nil, nil) == nil || e.CheckBinding(t.Context(), "", "new", ref("ClusterRole", "reader")) == nil {
		t.Error("nobody may give")
	}
}

func nodeUserOf(name string) user.Info { return who("system:node:"+name, "system:nodes") }

// TestNodes keeps nodes to what their pods need, and from what is another's.
func TestNodes(t *testing.T) {
	claim, node := "claim", "one"
	secret := func(name string) *corev1.SecretReference { return &corev1.SecretReference{Namespace: "ns", Name: name} }
	pod := &corev1.Pod{ObjectMeta: meta("ns", "pod"), Spec: corev1.PodSpec{
		NodeName: "one", ServiceAccountName: "robot", ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}},
		ResourceClaims: []corev1.PodResourceClaim{{Name: "a", ResourceClaimName: &claim}},
		InitContainers: []corev1.Container{{EnvFrom: []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "map"}}}}}},
		Containers: []corev1.Container{{Env: []corev1.EnvVar{{ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: "env"},
		}}}}}},
		Volumes: []corev1.Volume{
			{Name: "a", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "volume"}}},
			{Name: "b", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "pvc"}}},
			{Name: "c", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
			{Name: "d", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "projected"}}},
			}}}},
		},
	}}
	mirror := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "mirror", Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "x"}},
		Spec: corev1.PodSpec{NodeName: "one", Volumes: []corev1.Volume{
			{VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "of-mirror"}}},
		}},
	}
	pv := &corev1.PersistentVolume{ObjectMeta: meta("", "pv"), Spec: corev1.PersistentVolumeSpec{
		ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: "pvc"},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
			NodeStageSecretRef: secret("stage"), ControllerPublishSecretRef: secret("controller"),
		}},
	}}
	a, _ := start(t, Options{}, pod, mirror, pv,
		&storagev1.VolumeAttachment{ObjectMeta: meta("", "attachment"), Spec: storagev1.VolumeAttachmentSpec{NodeName: "one"}},
		&resourcev1.ResourceSlice{ObjectMeta: meta("", "slice"), Spec: resourcev1.ResourceSliceSpec{NodeName: &node}})
	for ask1, want := range map[string]bool{
		"get secrets ns/volume":                                 true,
		"list secrets ns/volume":                                true,
		"get secrets ns/env":                                    true,
		"get secrets ns/pull":                                   true,
		"get secrets ns/projected":                              true,
		"get secrets ns/stage":                                  true,
		"get secrets ns/controller":                             false,
		"get secrets ns/of-mirror":                              false,
		"get secrets ns/other":                                  false,
		"get secrets other/volume":                              false,
		"list secrets ns/":                                      false,
		"list secrets":                                          false,
		"update secrets ns/volume":                              false,
		"get configmaps ns/map":                                 true,
		"get persistentvolumeclaims ns/pvc":                     true,
		"get persistentvolumeclaims ns/pod-c":                   true,
		"list persistentvolumeclaims ns/pvc":                    false,
		"patch persistentvolumeclaims/status ns/pvc":            true,
		"patch persistentvolumeclaims/status ns/x":              false,
		"get persistentvolumes pv":                              true,
		"get persistentvolumes other":                           false,
		"get resource.k8s.io:resourceclaims ns/claim":           true,
		"get storage.k8s.io:volumeattachments attachment":       true,
		"get resource.k8s.io:resourceslices slice":              true,
		"delete resource.k8s.io:resourceslices slice":           true,
		"list resource.k8s.io:resourceslices":                   false,
		"get serviceaccounts ns/robot":                          true,
		"create serviceaccounts/token ns/robot":                 true,
		"create serviceaccounts/token ns/admin":                 false,
		"get coordination.k8s.io:leases kube-node-lease/one":    true,
		"get coordination.k8s.io:leases kube-node-lease/two":    false,
		"get coordination.k8s.io:leases kube-system/one":        false,
		"update storage.k8s.io:csinodes one":                    true,
		"update storage.k8s.io:csinodes two":                    false,
		"get nodes one":                                         true,
		"get nodes two":                                         false,
		"list nodes":                                            false,
		"patch nodes/status one":                                true,
		"get nodes/proxy one":                                   false,
		"get pods ns/pod":                                       true,
		"get pods ns/elsewhere":                                 false,
		"list pods":                                             false,
		"get pods/exec ns/pod":                                  false,
		"create pods/eviction ns/pod":                           true,
		"create events ns/":                                     true,
		"list services":                                         true,
		"delete services ns/a":                                  false,
		"create authentication.k8s.io:tokenreviews":             true,
		"create rbac.authorization.k8s.io:clusterrolebindings":  false,
		"create certificates.k8s.io:podcertificaterequests ns/": true,
		"get certificates.k8s.io:podcertificaterequests ns/a":   false,
	} {
		if got := allows(t, a.Authorizer(), ask(nodeUserOf("one"), ask1)); got != want {
			t.Errorf("its own node: %s: %v, want %v", ask1, got, want)
		}
		related := strings.Contains(ask1, "secrets") || strings.Contains(ask1, "persistentvolume") || strings.Contains(ask1, "serviceaccounts")
		if related && allows(t, a.Authorizer(), ask(nodeUserOf("two"), ask1)) {
			t.Errorf("another node: %s: allowed", ask1)
		}
		if related && allows(t, a.Authorizer(), ask(who("system:node:one"), ask1)) {
			t.Errorf("by its name alone, without the group: %s: allowed", ask1)
		}
	}
	own := ask(nodeUserOf("one"), "list pods")
	own.FieldSelectorRequirements = fields.Requirements{{Field: "spec.nodeName", Operator: "=", Value: "one"}}
	if !allows(t, a.Authorizer(), own) {
		t.Error("a node does not see its pods")
	}
	own.User = nodeUserOf("two")
	if allows(t, a.Authorizer(), own) {
		t.Error("a node sees the pods of another")
	}
	if _, _, incomplete, _ := a.RuleResolver().RulesFor(t.Context(), nodeUserOf("one"), "ns"); !incomplete {
		t.Error("what a node may is said to be all told")
	}
}

// TestConfiguredAuthorizers asks those that a file names, in its order.
func TestConfiguredAuthorizers(t *testing.T) {
	answer := `{"allowed": true}`
	service := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if _, err := w.Write([]byte(`{"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "status": ` + answer + `}`)); err != nil {
			t.Error(err)
		}
	}))
	defer service.Close()
	file := t.TempDir() + "/authorization.yaml"
	text := strings.ReplaceAll(authorizationFile, "KUBECONFIG", kubeconfig(t, service))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	a, _ := start(t, Options{AuthorizationConfiguration: file}, cluster()...)
	if !allows(t, a.Authorizer(), ask(who("wanda"), "delete nodes a")) {
		t.Error("what the webhook allows is denied")
	}
	answer = `{"allowed": false, "denied": true}`
	if allows(t, a.Authorizer(), ask(who("rita"), "get pods ns/a")) {
		t.Error("what the webhook denies is allowed by a role behind it")
	}
	service.Close()
	if allows(t, a.Authorizer(), ask(who("rita"), "list pods ns/b")) {
		t.Error("a webhook that cannot be asked does not deny, as its file asks for")
	}
}

const authorizationFile = `
apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- type: Webhook
  name: hook
  webhook:
    timeout: 1s
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: Deny
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: KUBECONFIG}
- {type: Node, name: node}
- {type: RBAC, name: rbac}
`

func TestConfigurations(t *testing.T) {
	const head = "apiVersion: apiserver.config.k8s.io/v1\nkind: "
	for text, good := range map[string]bool{
		head + "AuthenticationConfiguration\nanonymous: {enabled: true, conditions: [{path: /livez}]}":                                                             true,
		head + "AuthenticationConfiguration\njwt: [{issuer: {url: https://a.example.org, audiences: [b]}, claimMappings: {username: {claim: sub, prefix: \"\"}}}]": true,
		head + "AuthenticationConfiguration\njwt: [{issuer: {url: " + issuer + ", audiences: [b]}, claimMappings: {username: {claim: sub, prefix: \"\"}}}]":        false,
		head + "AuthenticationConfiguration\njwt: [{issuer: {url: http://a.example.org, audiences: [b]}, claimMappings: {username: {claim: sub, prefix: \"\"}}}]":  false,
		head + "AuthenticationConfiguration\nanonymus: {enabled: true}":                                                                                            false,
		head + "AuthorizationConfiguration\nauthorizers: [{type: RBAC, name: rbac}]":                                                                               false,
		"": false, "{": false,
	} {
		if _, err := parseAuthentication([]byte(text), issuer); (err == nil) != good {
			t.Errorf("%q: %v, want it to be good: %v", text, err, good)
		}
	}
	for text, good := range map[string]bool{
		head + "AuthorizationConfiguration\nauthorizers: [{type: RBAC, name: rbac}]":                            true,
		head + "AuthorizationConfiguration\nauthorizers: [{type: RBAC, name: rbac}, {type: RBAC, name: again}]": false,
		head + "AuthorizationConfiguration\nauthorizers: [{type: AlwaysAllow, name: allow}]":                    false,
		head + "AuthorizationConfiguration\nauthorizers: []":                                                    false,
		head + "AuthorizationConfiguration\nauthorizers: [{type: Webhook, name: hook}]":                         false,
	} {
		if _, err := parseAuthorization([]byte(text)); (err == nil) != good {
			t.Errorf("%q: %v, want it to be good: %v", text, err, good)
		}
	}
}

func FuzzConfigurations(f *testing.F) {
	f.Add([]byte(authorizationFile))
	f.Add([]byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\nanonymous: {enabled: true}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if config, err := parseAuthorization(text); err == nil && len(config.Authorizers) == 0 {
			t.Error("no authorizer is taken for a configuration")
		}
		if _, err := parseAuthentication(text, issuer); err != nil {
			return
		}
	})
}

// FuzzTokens looks for a token that is taken though nobody has signed it.
func FuzzTokens(f *testing.F) {
	k, err := newKeys([]any{newKey(f).Public()})
	if err != nil {
		f.Fatal(err)
	}
	a := &tokenAuthenticator{issuer: issuer, keys: k, signed: newSignedTokens(), audiences: []string{issuer}}
	f.Add("eyJhbGciOiJub25lIn0.e30.")
	f.Add("abcdef.0123456789abcdef")
	f.Add("eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJodHRwczovL2t1YmVybmV0ZXMuZGVmYXVsdC5zdmMifQ.AAAA")
	f.Fuzz(func(t *testing.T, token string) {
		if _, ok, _ := a.AuthenticateToken(t.Context(), token); ok {
			t.Errorf("%q is taken", token)
		}
		splitBootstrap(token)
	})
}
