// Package admissionregistration has the defaults and rules of webhooks and policies of admission. A webhook or policy
// without its defaults matches nothing, and admission is then open.
package admissionregistration

import (
	v1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-node/berth/control/api/check"
)

const (
	defaultTimeout = 10 // seconds
	defaultPort    = 443
)

// SetValidatingWebhookDefaults fills in what is missing.
func SetValidatingWebhookDefaults(o *v1.ValidatingWebhookConfiguration) {
	for i := range o.Webhooks {
		w := &o.Webhooks[i]
		check.OrNew(&w.FailurePolicy, v1.Fail)
		check.OrNew(&w.MatchPolicy, v1.Equivalent)
		check.OrNew(&w.NamespaceSelector, metav1.LabelSelector{})
		check.OrNew(&w.ObjectSelector, metav1.LabelSelector{})
		check.OrNew(&w.TimeoutSeconds, defaultTimeout)
		setRules(w.Rules)
		setClient(&w.ClientConfig)
	}
}

// SetMutatingWebhookDefaults fills in what is missing.
func SetMutatingWebhookDefaults(o *v1.MutatingWebhookConfiguration) {
	for i := range o.Webhooks {
		w := &o.Webhooks[i]
		check.OrNew(&w.FailurePolicy, v1.Fail)
		check.OrNew(&w.MatchPolicy, v1.Equivalent)
		check.OrNew(&w.NamespaceSelector, metav1.LabelSelector{})
		check.OrNew(&w.ObjectSelector, metav1.LabelSelector{})
		check.OrNew(&w.TimeoutSeconds, defaultTimeout)
		check.OrNew(&w.ReinvocationPolicy, v1.NeverReinvocationPolicy)
		setRules(w.Rules)
		setClient(&w.ClientConfig)
	}
}

func setRules(rules []v1.RuleWithOperations) {
	for i := range rules {
		check.OrNew(&rules[i].Scope, v1.AllScopes)
	}
}

func setClient(c *v1.WebhookClientConfig) {
	if c.Service != nil {
		check.OrNew(&c.Service.Port, defaultPort)
	}
}

// SetValidatingPolicyDefaults fills in what is missing.
func SetValidatingPolicyDefaults(o *v1.ValidatingAdmissionPolicy) {
	check.OrNew(&o.Spec.FailurePolicy, v1.Fail)
	setMatch(o.Spec.MatchConstraints)
}

// SetValidatingBindingDefaults fills in what is missing.
func SetValidatingBindingDefaults(o *v1.ValidatingAdmissionPolicyBinding) {
	setMatch(o.Spec.MatchResources)
}

// SetMutatingPolicyDefaults fills in what is missing.
func SetMutatingPolicyDefaults(o *v1.MutatingAdmissionPolicy) {
	check.OrNew(&o.Spec.FailurePolicy, v1.Fail)
	setMatch(o.Spec.MatchConstraints)
}

// SetMutatingBindingDefaults fills in what is missing.
func SetMutatingBindingDefaults(o *v1.MutatingAdmissionPolicyBinding) {
	setMatch(o.Spec.MatchResources)
}

func setMatch(m *v1.MatchResources) {
	if m == nil {
		return
	}
	check.OrNew(&m.MatchPolicy, v1.Equivalent)
	check.OrNew(&m.NamespaceSelector, metav1.LabelSelector{})
	check.OrNew(&m.ObjectSelector, metav1.LabelSelector{})
	for i := range m.ResourceRules {
		check.OrNew(&m.ResourceRules[i].Scope, v1.AllScopes)
	}
	for i := range m.ExcludeResourceRules {
		check.OrNew(&m.ExcludeResourceRules[i].Scope, v1.AllScopes)
	}
}
