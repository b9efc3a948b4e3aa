package clusterroleaggregation

import (
	"fmt"
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// role has a rule for each of some resources, or is made of those with any of some labels.
func role(name, label string, of []string, resources ...string) *rbacv1.ClusterRole {
	r := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"is": label}}}
	for _, one := range resources {
		r.Rules = append(r.Rules, rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{one}})
	}
	if of != nil {
		r.AggregationRule = &rbacv1.AggregationRule{}
		for _, one := range of {
			r.AggregationRule.ClusterRoleSelectors = append(r.AggregationRule.ClusterRoleSelectors, metav1.LabelSelector{MatchLabels: map[string]string{"is": one}})
		}
	}
	return r
}

func resources(t *testing.T, r *rbacv1.ClusterRole, all []*rbacv1.ClusterRole) []string {
	t.Helper()
	rules, err := aggregate(r, all)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, one := range rules {
		names = append(names, one.Resources...)
	}
	return names
}

// TestAggregate has roles be made of others, of others that are made of others, and of each other in a circle: what one
// says that is made of others is what the others say, and no more.
func TestAggregate(t *testing.T) {
	leaf, more := role("d", "leaf", nil, "pods", "nodes"), role("e", "more", nil, "pods", "secrets")
	simple := role("a", "simple", []string{"leaf", "more"}, "old")
	above := role("b", "above", []string{"simple"})
	one, two, three := role("x", "one", []string{"two", "leaf"}, "gone"), role("y", "two", []string{"three"}, "away"), role("z", "three", []string{"one"})
	self := role("s", "leaf", []string{"leaf"}, "self")
	all := []*rbacv1.ClusterRole{more, three, above, leaf, two, simple, one}
	for _, c := range []struct {
		role *rbacv1.ClusterRole
		want []string
	}{
		{simple, []string{"pods", "nodes", "secrets"}},
		{above, []string{"pods", "nodes", "secrets"}},
		{one, []string{"pods", "nodes"}},
		{two, []string{"pods", "nodes"}},
		{three, []string{"pods", "nodes"}},
		{role("n", "", []string{}), []string{}},
	} {
		if got := resources(t, c.role, all); !slices.Equal(got, c.want) {
			t.Errorf("%s has %v", c.role.Name, got)
		}
	}
	if got := resources(t, self, append(all, self)); !slices.Equal(got, []string{"pods", "nodes"}) {
		t.Errorf("one that selects itself has %v", got)
	}
}

// TestManyRules has a role be made of ten thousand rules in two roles, and of a thousand roles that each select all:
// each rule and each role is looked at once.
func TestManyRules(t *testing.T) {
	const many, circle = 10_000, 1000
	var names []string
	for i := range many {
		names = append(names, fmt.Sprint("r", i))
	}
	all := []*rbacv1.ClusterRole{role("a", "leaf", nil, names...), role("b", "leaf", nil, names...)}
	for i := range circle {
		r := role(fmt.Sprint("c", i), "leaf", []string{})
		r.AggregationRule.ClusterRoleSelectors = []metav1.LabelSelector{{}}
		all = append(all, r)
	}
	if n := testing.AllocsPerRun(1, func() {
		rules, err := aggregate(all[2], all)
		if err != nil || len(rules) != many {
			t.Errorf("there are %d, %v", len(rules), err)
		}
	}); n > 10*many {
		t.Errorf("it costs %.0f allocations", n)
	}
}
