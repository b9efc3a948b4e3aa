package rules

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// TestEmpty has every kind's rules look at an object that says nothing: as a client may send.
func TestEmpty(t *testing.T) {
	for _, gvk := range Kinds() {
		r, ok := For(gvk)
		if !ok {
			t.Fatalf("%s is in the table and not found", gvk)
		}
		o, err := scheme.Scheme.New(gvk)
		if err != nil {
			t.Fatal(err)
		}
		r.Default(o)
		once := o.DeepCopyObject()
		r.Default(o)
		if !equality.Semantic.DeepEqual(once, o) {
			t.Errorf("%s: defaults are not the same when set twice", gvk.Kind)
		}
		if errs := r.ValidateCreate(o); !has(errs, "Required value", "metadata.name") {
			t.Errorf("%s: an object without a name is taken: %v", gvk.Kind, errs)
		}
		r.ValidateUpdate(o, once)
	}
}

func TestUnknown(t *testing.T) {
	if _, ok := For(corev1.SchemeGroupVersion.WithKind("Nothing")); ok {
		t.Error("a kind that there is not has rules")
	}
}

func has(errs field.ErrorList, kind, path string) bool {
	return slices.ContainsFunc(errs, func(e *field.Error) bool { return e.Type.String() == kind && e.Field == path })
}

// TestOpen holds what admission is open without: a webhook or policy that says little is about everything it names, and
// refuses when it cannot be asked.
func TestOpen(t *testing.T) {
	hook := object[admissionv1.ValidatingWebhookConfiguration](t, "webhooks: [{rules: [{operations: [CREATE]}], clientConfig: {service: {}}}]")
	set(t, admissionv1.SchemeGroupVersion.WithKind("ValidatingWebhookConfiguration").Kind, hook)
	w := hook.Webhooks[0]
	if *w.FailurePolicy != admissionv1.Fail || *w.MatchPolicy != admissionv1.Equivalent || w.NamespaceSelector == nil || w.ObjectSelector == nil ||
		*w.TimeoutSeconds != 10 || *w.Rules[0].Scope != admissionv1.AllScopes || *w.ClientConfig.Service.Port != 443 {
		t.Errorf("a validating webhook lacks defaults: %+v", w)
	}
	policy := object[admissionv1.ValidatingAdmissionPolicy](t, "spec: {matchConstraints: {resourceRules: [{operations: [CREATE]}]}}")
	set(t, "ValidatingAdmissionPolicy", policy)
	m := policy.Spec.MatchConstraints
	if *policy.Spec.FailurePolicy != admissionv1.Fail || *m.MatchPolicy != admissionv1.Equivalent || m.NamespaceSelector == nil || m.ObjectSelector == nil ||
		*m.ResourceRules[0].Scope != admissionv1.AllScopes {
		t.Errorf("a policy lacks defaults: %+v", policy.Spec)
	}
}

func set(t *testing.T, kind string, o runtime.Object) {
	t.Helper()
	r, ok := For(admissionv1.SchemeGroupVersion.WithKind(kind))
	if !ok {
		t.Fatalf("%s has no rules", kind)
	}
	r.Default(o)
}

func object[T any](t *testing.T, text string) *T {
	t.Helper()
	o := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), o); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return o
}

const podSpec = "{metadata: {labels: {a: b}}, spec: {restartPolicy: %s, containers: [{name: a, image: a}]}}"

// TestUpdates holds changes to what may change.
func TestUpdates(t *testing.T) {
	always, never := fmt.Sprintf(podSpec, "Always"), fmt.Sprintf(podSpec, "Never")
	for _, c := range []struct {
		name, old, now, refused string
		kind                    string
		group                   int
	}{
		{"data of an immutable ConfigMap", "{immutable: true, data: {a: b}}", "{immutable: true, data: {a: c}}", "data", "ConfigMap", 0},
		{"type of a Secret", "{type: a}", "{type: b}", "type", "Secret", 0},
		{
			"cluster IP", "{spec: {clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1], ports: [{port: 1}]}}",
			"{spec: {clusterIP: 10.0.0.2, clusterIPs: [10.0.0.2], ports: [{port: 1}]}}", "spec.clusterIPs[0]", "Service", 0,
		},
		{"image of a pod", "{spec: {containers: [{name: a, image: a}]}}", "{spec: {containers: [{name: a, image: b}]}}", "", "Pod", 0},
		{"command of a pod", "{spec: {containers: [{name: a, image: a}]}}", "{spec: {containers: [{name: a, image: a, command: [b]}]}}", "spec", "Pod", 0},
		{
			"selector of a deployment", "{spec: {selector: {matchLabels: {a: b}}, template: " + always + "}}",
			"{spec: {selector: {matchExpressions: [{key: a, operator: Exists}]}, template: " + always + "}}", "spec.selector", "Deployment", 1,
		},
		{
			"service of a stateful set", "{spec: {serviceName: a, selector: {matchLabels: {a: b}}, template: " + always + "}}",
			"{spec: {serviceName: b, selector: {matchLabels: {a: b}}, template: " + always + "}}", "spec", "StatefulSet", 1,
		},
		{
			"parallelism of a job", "{spec: {manualSelector: true, selector: {matchLabels: {a: b}}, template: " + never + "}}",
			"{spec: {parallelism: 3, completions: 1, manualSelector: true, selector: {matchLabels: {a: b}}, template: " + never + "}}", "", "Job", 2,
		},
		{
			"completions of a job", "{spec: {completions: 1, manualSelector: true, selector: {matchLabels: {a: b}}, template: " + never + "}}",
			"{spec: {completions: 2, manualSelector: true, selector: {matchLabels: {a: b}}, template: " + never + "}}", "spec.completions", "Job", 2,
		},
	} {
		gvk := []func(string) (Rules, bool){
			func(k string) (Rules, bool) { return For(corev1.SchemeGroupVersion.WithKind(k)) },
			func(k string) (Rules, bool) { return For(appsv1.SchemeGroupVersion.WithKind(k)) },
			func(k string) (Rules, bool) { return For(batchv1.SchemeGroupVersion.WithKind(k)) },
		}[c.group]
		r, ok := gvk(c.kind)
		if !ok {
			t.Fatalf("%s has no rules", c.kind)
		}
		parse := func(text string) runtime.Object {
			version := []string{"v1", "apps/v1", "batch/v1"}[c.group]
			head := fmt.Sprintf("{apiVersion: %s, kind: %s, metadata: {name: a, namespace: default, resourceVersion: \"1\"}, ", version, c.kind)
			text = head + strings.TrimPrefix(text, "{")
			data, err := yaml.YAMLToJSON([]byte(text))
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			o, _, err := scheme.Codecs.UniversalDeserializer().Decode(data, nil, nil)
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			r.Default(o)
			return o
		}
		errs := r.ValidateUpdate(parse(c.now), parse(c.old))
		switch {
		case c.refused == "" && len(errs) > 0:
			t.Errorf("%s: %v", c.name, errs)
		case c.refused != "" && !slices.ContainsFunc(errs, func(e *field.Error) bool { return e.Field == c.refused }):
			t.Errorf("%s: not refused for %s: %v", c.name, c.refused, errs)
		}
	}
}
