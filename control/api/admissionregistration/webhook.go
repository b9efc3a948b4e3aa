package admissionregistration

import (
	"fmt"
	"net/url"
	"strings"

	v1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api/check"
)

// webhook is what both kinds of webhooks have.
type webhook struct {
	name       string
	v1         *v1.ValidatingWebhook
	reinvoked  *v1.ReinvocationPolicyType
	conditions []v1.MatchCondition
}

// strictness is what a changed configuration is not asked for that the one before did not have either: those of older
// versions of the API had no such rules.
type strictness struct {
	unique, sideEffects, recognized, labels bool
	known                                   expressions
}

func ofValidating(o *v1.ValidatingWebhookConfiguration) []webhook {
	all := make([]webhook, len(o.Webhooks))
	for i := range o.Webhooks {
		w := &o.Webhooks[i]
		all[i] = webhook{name: w.Name, v1: w, conditions: w.MatchConditions}
	}
	return all
}

func ofMutating(o *v1.MutatingWebhookConfiguration) []webhook {
	all := make([]webhook, len(o.Webhooks))
	for i := range o.Webhooks {
		w := &o.Webhooks[i]
		all[i] = webhook{name: w.Name, reinvoked: w.ReinvocationPolicy, conditions: w.MatchConditions, v1: &v1.ValidatingWebhook{
			ClientConfig: w.ClientConfig, Rules: w.Rules, FailurePolicy: w.FailurePolicy, MatchPolicy: w.MatchPolicy,
			NamespaceSelector: w.NamespaceSelector, ObjectSelector: w.ObjectSelector, SideEffects: w.SideEffects,
			TimeoutSeconds: w.TimeoutSeconds, AdmissionReviewVersions: w.AdmissionReviewVersions,
		}}
	}
	return all
}

// ValidateValidatingWebhook holds a new configuration to its rules.
func ValidateValidatingWebhook(o *v1.ValidatingWebhookConfiguration) field.ErrorList {
	errs := check.Meta(o, false, check.SubdomainName)
	return append(errs, webhooks(ofValidating(o), strict())...)
}

// ValidateValidatingWebhookUpdate holds a changed one to its rules.
func ValidateValidatingWebhookUpdate(o, old *v1.ValidatingWebhookConfiguration) field.ErrorList {
	errs := append(check.Meta(o, false, check.SubdomainName), check.MetaUpdate(o, old)...)
	return append(errs, webhooks(ofValidating(o), asBefore(ofValidating(old)))...)
}

// ValidateMutatingWebhook holds a new configuration to its rules.
func ValidateMutatingWebhook(o *v1.MutatingWebhookConfiguration) field.ErrorList {
	errs := check.Meta(o, false, check.SubdomainName)
	return append(errs, webhooks(ofMutating(o), strict())...)
}

// ValidateMutatingWebhookUpdate holds a changed one to its rules.
func ValidateMutatingWebhookUpdate(o, old *v1.MutatingWebhookConfiguration) field.ErrorList {
	errs := append(check.Meta(o, false, check.SubdomainName), check.MetaUpdate(o, old)...)
	return append(errs, webhooks(ofMutating(o), asBefore(ofMutating(old)))...)
}

func strict() strictness {
	return strictness{unique: true, sideEffects: true, recognized: true, labels: true}
}

func asBefore(old []webhook) strictness {
	s := strict()
	s.known = expressions{}
	names := sets.New[string]()
	for _, w := range old {
		s.unique = s.unique && !names.Has(w.name)
		names.Insert(w.name)
		s.sideEffects = s.sideEffects && w.v1.SideEffects != nil && quiet(*w.v1.SideEffects)
		s.recognized = s.recognized && hasRecognized(w.v1.AdmissionReviewVersions)
		path := field.NewPath("")
		s.labels = s.labels && len(check.Selector(path, w.v1.NamespaceSelector))+len(check.Selector(path, w.v1.ObjectSelector)) == 0
		for _, c := range w.conditions {
			s.known.add(c.Expression)
		}
	}
	return s
}

func quiet(s v1.SideEffectClass) bool {
	return s == v1.SideEffectClassNone || s == v1.SideEffectClassNoneOnDryRun
}

func hasRecognized(versions []string) bool {
	for _, v := range versions {
		if v == "v1" || v == "v1beta1" {
			return true
		}
	}
	return false
}

func webhooks(all []webhook, s strictness) field.ErrorList {
	var errs field.ErrorList
	names := sets.New[string]()
	for i := range all {
		w, path := &all[i], field.NewPath("webhooks").Index(i)
		errs = append(errs, validateWebhook(w, s, path)...)
		if s.unique && w.name != "" {
			if names.Has(w.name) {
				errs = append(errs, field.Duplicate(path.Child("name"), w.name))
			}
			names.Insert(w.name)
		}
	}
	return errs
}

func validateWebhook(w *webhook, s strictness, path *field.Path) field.ErrorList {
	errs := validation.IsFullyQualifiedName(path.Child("name"), w.name)
	errs = append(errs, reviewVersions(w.v1.AdmissionReviewVersions, s.recognized, path.Child("admissionReviewVersions"))...)
	for i := range w.v1.Rules {
		errs = append(errs, validateRule(&w.v1.Rules[i], false, path.Child("rules").Index(i))...)
	}
	errs = append(errs, check.SupportedIf(path.Child("failurePolicy"), w.v1.FailurePolicy, v1.Ignore, v1.Fail)...)
	errs = append(errs, check.SupportedIf(path.Child("matchPolicy"), w.v1.MatchPolicy, v1.Exact, v1.Equivalent)...)
	at := path.Child("sideEffects")
	switch e := w.v1.SideEffects; {
	case e == nil:
		errs = append(errs, field.Required(at, "must specify one of None, NoneOnDryRun"))
	case s.sideEffects:
		errs = append(errs, check.Supported(at, *e, v1.SideEffectClassNone, v1.SideEffectClassNoneOnDryRun)...)
	default:
		errs = append(errs, check.Supported(at, *e, v1.SideEffectClassUnknown, v1.SideEffectClassNone, v1.SideEffectClassSome, v1.SideEffectClassNoneOnDryRun)...)
	}
	if t := w.v1.TimeoutSeconds; t != nil && (*t < 1 || *t > 30) {
		errs = append(errs, field.Invalid(path.Child("timeoutSeconds"), *t, "the timeout value must be between 1 and 30 seconds"))
	}
	errs = append(errs, selector(w.v1.NamespaceSelector, s.labels, path.Child("namespaceSelector"))...)
	errs = append(errs, selector(w.v1.ObjectSelector, s.labels, path.Child("objectSelector"))...)
	errs = append(errs, validateClient(&w.v1.ClientConfig, path.Child("clientConfig"))...)
	errs = append(errs, check.SupportedIf(path.Child("reinvocationPolicy"), w.reinvoked, v1.NeverReinvocationPolicy, v1.IfNeededReinvocationPolicy)...)
	return append(errs, matchConditions(w.conditions, compiler{known: s.known}, false, path.Child("matchConditions"))...)
}

func reviewVersions(versions []string, recognized bool, path *field.Path) field.ErrorList {
	if len(versions) == 0 {
		return field.ErrorList{field.Required(path, "must specify one of v1, v1beta1")}
	}
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, v := range versions {
		if seen.Has(v) {
			errs = append(errs, field.Invalid(path.Index(i), v, "duplicate version"))
			continue
		}
		seen.Insert(v)
		errs = append(errs, check.Invalid(path.Index(i), v, validation.IsDNS1035Label(v))...)
	}
	if recognized && !hasRecognized(versions) {
		errs = append(errs, field.Invalid(path, versions, "must include at least one of v1, v1beta1"))
	}
	return errs
}

func validateClient(c *v1.WebhookClientConfig, path *field.Path) field.ErrorList {
	switch {
	case (c.URL == nil) == (c.Service == nil):
		return field.ErrorList{field.Required(path, "exactly one of url or service is required")}
	case c.URL != nil:
		return validateURL(*c.URL, path.Child("url"))
	}
	path = path.Child("service")
	errs := check.Required(path.Child("name"), c.Service.Name)
	errs = append(errs, check.Required(path.Child("namespace"), c.Service.Namespace)...)
	if p := c.Service.Port; p != nil {
		errs = append(errs, check.Invalid(path.Child("port"), *p, validation.IsValidPortNum(int(*p)))...)
	}
	if c.Service.Path == nil {
		return errs
	}
	return append(errs, validatePath(*c.Service.Path, path.Child("path"))...)
}

// validateURL wants what is reached safely and carries nothing but where: the API server adds the rest.
func validateURL(text string, path *field.Path) field.ErrorList {
	const form = "; desired format: https://host[/path]"
	u, err := url.Parse(text)
	if err != nil {
		return field.ErrorList{field.Required(path, "url must be a valid URL: "+err.Error()+form)}
	}
	var errs field.ErrorList
	if u.Scheme != "https" {
		errs = append(errs, field.Invalid(path, u.Scheme, "'https' is the only allowed URL scheme"+form))
	}
	if u.Host == "" {
		errs = append(errs, field.Invalid(path, u.Host, "host must be specified"+form))
	}
	if u.User != nil {
		errs = append(errs, field.Invalid(path, u.User.String(), "user information is not permitted in the URL"))
	}
	if u.Fragment != "" {
		errs = append(errs, field.Invalid(path, u.Fragment, "fragments are not permitted in the URL"))
	}
	if u.RawQuery != "" {
		errs = append(errs, field.Invalid(path, u.RawQuery, "query parameters are not permitted in the URL"))
	}
	return errs
}

func validatePath(text string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if text == "/" || text == "" {
		return nil
	}
	if text == "//" {
		return field.ErrorList{field.Invalid(path, text, "segment[0] may not be empty")}
	}
	if !strings.HasPrefix(text, "/") {
		errs = append(errs, field.Invalid(path, text, "must start with a '/'"))
	}
	for i, step := range strings.Split(strings.TrimSuffix(strings.TrimPrefix(text, "/"), "/"), "/") {
		if step == "" {
			errs = append(errs, field.Invalid(path, text, fmt.Sprintf("segment[%d] may not be empty", i)))
			continue
		}
		for _, why := range validation.IsDNS1123Subdomain(step) {
			errs = append(errs, field.Invalid(path, text, fmt.Sprintf("segment[%d]: %s", i, why)))
		}
	}
	return errs
}
