package admission

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta/testrestmapper"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	webhookinit "k8s.io/apiserver/pkg/admission/plugin/webhook/initializer"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	utilcompatibility "k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/discovery"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/openapi"
	"sigs.k8s.io/yaml"
)

// parse reads an object of Kubernetes.
func parse(t *testing.T, text string) runtime.Object {
	t.Helper()
	if text == "" {
		return nil
	}
	data, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	o, _, err := scheme.Codecs.UniversalDeserializer().Decode(data, nil, nil)
	if err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return o
}

// start makes one plugin as the server does, over a server that has some objects. Users may do what their name says:
// "VERB NAME" is allowed VERB on NAME.
func start(t *testing.T, name string, objects ...string) (admission.Interface, *fake.Clientset) {
	t.Helper()
	var all []runtime.Object
	for _, text := range objects {
		all = append(all, parse(t, text))
	}
	client := fake.NewClientset(all...)
	factory := informers.NewSharedInformerFactory(client, 0)
	o := Options{Informers: factory}
	plugins, err := Plugins(o)
	if err != nil {
		t.Fatal(err)
	}
	allow := authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if a.GetUser().GetName() == a.GetVerb()+" "+a.GetName() {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionNoOpinion, "", nil
	})
	mapper := testrestmapper.TestOnlyStaticRESTMapper(scheme.Scheme)
	library := initializer.New(withSchemas{client}, dynamicfake.NewSimpleDynamicClient(scheme.Scheme), factory, allow, utilfeature.DefaultFeatureGate,
		utilcompatibility.DefaultBuildEffectiveVersion(), t.Context().Done(), mapper)
	hooks := webhookinit.NewPluginInitializer(func(r webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver { return r },
		webhook.NewDefaultServiceResolver())
	p, err := plugins.InitPlugin(name, nil, append(admission.PluginInitializers{library, hooks}, Initializers(o)...))
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	return p, client
}

// withSchemas is a client whose server tells of no schemas. The fake one panics when it is asked.
type withSchemas struct{ kubernetes.Interface }

func (c withSchemas) Discovery() discovery.DiscoveryInterfaces {
	return schemas{c.Interface.Discovery()}
}

type schemas struct{ discovery.DiscoveryInterfaces }

func (schemas) OpenAPIV3() openapi.Client { return noPaths{} }

func (schemas) OpenAPIV3WithContext(context.Context) openapi.ClientWithContext {
	return openapi.ToClientWithContext(noPaths{})
}

type noPaths struct{}

func (noPaths) Paths() (map[string]openapi.GroupVersion, error) {
	return map[string]openapi.GroupVersion{}, nil
}

// ask is one request.
type ask struct {
	as        user.Info
	operation admission.Operation
	resource  string // RESOURCE[/SUBRESOURCE]
	object    runtime.Object
	old       runtime.Object
	name      string
}

func (r ask) attributes() admission.Attributes {
	resource, sub, _ := strings.Cut(r.resource, "/")
	o := r.object
	if o == nil {
		o = r.old
	}
	kind := o.GetObjectKind().GroupVersionKind()
	name, namespace := r.name, ""
	if m, ok := o.(interface {
		GetName() string
		GetNamespace() string
	}); ok {
		if namespace = m.GetNamespace(); name == "" {
			name = m.GetName()
		}
	}
	group := kind.GroupVersion()
	if sub == "token" || sub == "eviction" || sub == "binding" {
		group = schema.GroupVersion{Version: "v1"}
	}
	as := r.as
	if as == nil {
		as = &user.DefaultInfo{Name: "somebody"}
	}
	return admission.NewAttributesRecord(r.object, r.old, kind, namespace, name, group.WithResource(resource), sub, r.operation, nil, false, as)
}

// run has a plugin admit and validate, as the server has.
func run(ctx context.Context, p admission.Interface, a admission.Attributes) error {
	if !p.Handles(a.GetOperation()) {
		return nil
	}
	interfaces := admission.NewObjectInterfacesFromScheme(scheme.Scheme)
	if m, ok := p.(admission.MutationInterface); ok {
		if err := m.Admit(ctx, a, interfaces); err != nil {
			return err
		}
	}
	if v, ok := p.(admission.ValidationInterface); ok {
		return v.Validate(ctx, a, interfaces)
	}
	return nil
}

// testRow is a request to a plugin: refused is what the refusal says, or want what the object has after it.
type testRow struct {
	plugin    string
	have      []string
	as        string
	operation admission.Operation
	resource  string
	object    string
	old       string
	refused   string
	want      string
}

func (r testRow) String() string {
	return fmt.Sprintf("%s: %s %s by %q: %s", r.plugin, r.operation, r.resource, r.as, r.object)
}

func (r testRow) test(t *testing.T) {
	t.Helper()
	p, _ := start(t, r.plugin, r.have...)
	as := &user.DefaultInfo{Name: r.as}
	if strings.HasPrefix(r.as, "system:node:") {
		as.Groups = []string{"system:nodes"}
	}
	if r.operation == "" {
		r.operation = admission.Create
	}
	object := parse(t, r.object)
	err := run(t.Context(), p, ask{as: as, operation: r.operation, resource: r.resource, object: object, old: parse(t, r.old)}.attributes())
	switch {
	case r.refused != "" && (err == nil || !strings.Contains(err.Error(), r.refused)):
		t.Errorf("%s: error is %v, want %q", r, err, r.refused)
	case r.refused == "" && err != nil:
		t.Errorf("%s: refused: %v", r, err)
	case r.want != "":
		text, err := yaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), r.want) {
			t.Errorf("%s: has become\n%s\nwithout %s", r, text, r.want)
		}
	}
}

// TestOrder has the plugins that Kubernetes turns on, and what sees all others' changes behind them.
func TestOrder(t *testing.T) {
	order := RecommendedOrder()
	p, err := Plugins(Options{Informers: informers.NewSharedInformerFactory(fake.NewClientset(), 0)})
	if err != nil {
		t.Fatal(err)
	}
	registered := p.Registered()
	sorted := slices.Sorted(slices.Values(order))
	slices.Sort(registered)
	if !slices.Equal(sorted, registered) {
		t.Errorf("in the order are %v, registered %v", sorted, registered)
	}
	for _, pair := range [][2]string{
		{"NamespaceLifecycle", "LimitRanger"},
		{"LimitRanger", "ServiceAccount"},
		{"ServiceAccount", "PodSecurity"},
		{"Priority", "ResourceQuota"},
		{"MutatingAdmissionPolicy", "MutatingAdmissionWebhook"},
		{"MutatingAdmissionWebhook", "ValidatingAdmissionPolicy"},
		{"ValidatingAdmissionPolicy", "ValidatingAdmissionWebhook"},
		{"ValidatingAdmissionWebhook", "ResourceQuota"},
	} {
		if slices.Index(order, pair[0]) >= slices.Index(order, pair[1]) {
			t.Errorf("%s comes after %s", pair[0], pair[1])
		}
	}
	if off := DefaultOff(); !off.HasAll("DenyServiceExternalIPs", "OwnerReferencesPermissionEnforcement") || off.Len() != 2 {
		t.Errorf("off are %v", off)
	}
}

// TestWrongType refuses an object that a plugin cannot look into: to pass it would be to fail open.
func TestWrongType(t *testing.T) {
	wrong := &corev1.Event{}
	wrong.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Event"})
	for plugin, resource := range map[string]string{
		"TaintNodesByCondition": "nodes", "ServiceAccount": "pods", "LimitRanger": "pods", "Priority": "pods", "RuntimeClass": "pods",
		"DefaultTolerationSeconds": "pods", "DefaultStorageClass": "persistentvolumeclaims", "DenyServiceExternalIPs": "services", "PodTopologyLabels": "pods",
	} {
		p, _ := start(t, plugin)
		err := run(t.Context(), p, ask{operation: admission.Create, resource: resource, object: wrong}.attributes())
		if err == nil || !strings.Contains(err.Error(), "which is not its type") {
			t.Errorf("%s takes a %T for one of %s: %v", plugin, wrong, resource, err)
		}
	}
}
