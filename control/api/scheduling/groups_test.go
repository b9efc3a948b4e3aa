package scheduling

import (
	"strings"
	"testing"

	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

func read[T any](t *testing.T, text string) *T {
	t.Helper()
	o := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), o); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return o
}

func expect(t *testing.T, name string, errs field.ErrorList, refused string) {
	t.Helper()
	switch text := errs.ToAggregate(); {
	case refused == "" && text != nil:
		t.Errorf("%s: %v", name, text)
	case refused != "" && (text == nil || !strings.Contains(text.Error(), refused)):
		t.Errorf("%s: %v, not refused for %s", name, text, refused)
	}
}

// TestPodGroup holds groups, and changes of them, to their rules.
func TestPodGroup(t *testing.T) {
	const head = "metadata: {name: g, namespace: n, resourceVersion: '1'}\nspec: "
	for _, c := range []struct{ name, spec, refused string }{
		{"gang", "{schedulingPolicy: {gang: {minCount: 3}}}", ""},
		{"basic", "{schedulingPolicy: {basic: {}}}", ""},
		{"no policy", "{}", "spec.schedulingPolicy"},
		{"both", "{schedulingPolicy: {basic: {}, gang: {minCount: 1}}}", "must specify exactly one of"},
		{"of none", "{schedulingPolicy: {gang: {minCount: 0}}}", "spec.schedulingPolicy.gang.minCount"},
		{"template without a name", "{schedulingPolicy: {basic: {}}, workloadRef: {workloadName: w}}", "spec.workloadRef.templateName"},
		{"constraints", "{schedulingPolicy: {basic: {}}, schedulingConstraints: {topology: [{key: a}]}}", "spec.schedulingConstraints"},
		{"too important", "{schedulingPolicy: {basic: {}}, priority: 1000000001}", "spec.priority"},
	} {
		o := read[schedulingv1beta1.PodGroup](t, head+c.spec)
		SetPodGroupDefaults(o)
		expect(t, c.name, ValidatePodGroup(o), c.refused)
	}
	for _, c := range []struct{ name, old, now, refused string }{
		{"minCount", "{schedulingPolicy: {gang: {minCount: 3}}}", "{schedulingPolicy: {gang: {minCount: 4}}}", ""},
		{"another policy", "{schedulingPolicy: {gang: {minCount: 3}}}", "{schedulingPolicy: {basic: {}}}", "spec.schedulingPolicy.gang"},
		{"a gang", "{schedulingPolicy: {basic: {}}}", "{schedulingPolicy: {gang: {minCount: 3}}}", "spec.schedulingPolicy.gang"},
		{"disruption", "{schedulingPolicy: {basic: {}}}", "{schedulingPolicy: {basic: {}}, disruptionMode: {all: {}}}", "spec.disruptionMode"},
	} {
		now, old := read[schedulingv1beta1.PodGroup](t, head+c.now), read[schedulingv1beta1.PodGroup](t, head+c.old)
		SetPodGroupDefaults(now)
		SetPodGroupDefaults(old)
		expect(t, c.name, ValidatePodGroupUpdate(now, old), c.refused)
	}
}

// TestWorkload holds workloads, and changes of them, to their rules.
func TestWorkload(t *testing.T) {
	const head = "metadata: {name: w, namespace: n, resourceVersion: '1'}\nspec: "
	const a, b = "{name: a, schedulingPolicy: {gang: {minCount: 3}}}", "{name: b, schedulingPolicy: {basic: {}}}"
	for _, c := range []struct{ name, spec, refused string }{
		{"two", "{podGroupTemplates: [" + a + ", " + b + "]}", ""},
		{"none", "{}", "must specify one of"},
		{"twice", "{podGroupTemplates: [" + a + ", " + a + "]}", "Duplicate"},
		{"controller", "{podGroupTemplates: [" + a + "], controllerRef: {kind: 'a/b', name: c}}", "spec.controllerRef.kind"},
	} {
		expect(t, c.name, ValidateWorkload(read[schedulingv1beta1.Workload](t, head+c.spec)), c.refused)
	}
	old := read[schedulingv1beta1.Workload](t, head+"{podGroupTemplates: ["+a+"]}")
	for _, c := range []struct{ name, spec, refused string }{
		{"as it was", "{podGroupTemplates: [" + a + "]}", ""},
		{"more pods", "{podGroupTemplates: [" + strings.Replace(a, "3", "4", 1) + "]}", ""},
		{"one more", "{podGroupTemplates: [" + a + ", " + b + "]}", "may not be added"},
		{"another one", "{podGroupTemplates: [" + b + "]}", "may not be removed"},
	} {
		expect(t, c.name, ValidateWorkloadUpdate(read[schedulingv1beta1.Workload](t, head+c.spec), old), c.refused)
	}
}
