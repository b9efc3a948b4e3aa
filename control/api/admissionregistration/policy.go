package admissionregistration

import (
	"regexp"
	"strings"

	"github.com/google/cel-go/cel"
	v1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/berth-node/berth/control/api/check"
)

const (
	maxAuditAnnotations = 20
	maxAnnotationValue  = 5 << 10 // bytes of the expression
)

// identifier is what CEL takes for one (its reserved words are refused by the compiler).
var identifier = regexp.MustCompile(`^[_a-zA-Z][_a-zA-Z0-9]*$`)

// policy is what validating and mutating policies share.
type policy struct {
	failure    *v1.FailurePolicyType
	params     *v1.ParamKind
	match      *v1.MatchResources
	conditions []v1.MatchCondition
	variables  []v1.Variable
	known      expressions
	labels     bool // selectors have only valid values
}

// ValidateValidatingPolicy holds a new policy to its rules.
func ValidateValidatingPolicy(o *v1.ValidatingAdmissionPolicy) field.ErrorList {
	errs := check.Meta(o, false, check.SubdomainName)
	return append(errs, validatingPolicy(o, nil)...)
}

// ValidateValidatingPolicyUpdate holds a changed policy to its rules.
func ValidateValidatingPolicyUpdate(o, old *v1.ValidatingAdmissionPolicy) field.ErrorList {
	errs := append(check.Meta(o, false, check.SubdomainName), check.MetaUpdate(o, old)...)
	return append(errs, validatingPolicy(o, old)...)
}

func validatingPolicy(o, old *v1.ValidatingAdmissionPolicy) field.ErrorList {
	s := &o.Spec
	p := policy{failure: s.FailurePolicy, params: s.ParamKind, match: s.MatchConstraints, conditions: s.MatchConditions, variables: s.Variables, labels: true}
	if old != nil {
		for _, m := range old.Spec.MatchConditions {
			p.known.add(m.Expression)
		}
		for _, v := range old.Spec.Variables {
			p.known.add(v.Expression)
		}
		for _, v := range old.Spec.Validations {
			p.known.add(v.Expression)
			p.known.add(v.MessageExpression)
		}
		for _, a := range old.Spec.AuditAnnotations {
			p.known.add(a.ValueExpression)
		}
	}
	path := field.NewPath("spec")
	c, errs := p.validate(path)
	if len(s.Validations) == 0 && len(s.AuditAnnotations) == 0 {
		errs = append(errs, field.Required(path.Child("validations"), "validations or auditAnnotations must have an item"),
			field.Required(path.Child("auditAnnotations"), "validations or auditAnnotations must have an item"))
	}
	for i := range s.Validations {
		errs = append(errs, oneValidation(&s.Validations[i], c, path.Child("validations").Index(i))...)
	}
	return append(errs, auditAnnotations(s.AuditAnnotations, o.Name, c, path.Child("auditAnnotations"))...)
}

// validate checks what all policies have, and returns what compiles their expressions: variables are known in the order
// that they stand in.
func (p *policy) validate(path *field.Path) (compiler, field.ErrorList) {
	var errs field.ErrorList
	if p.failure == nil {
		errs = append(errs, field.Required(path.Child("failurePolicy"), ""))
	}
	errs = append(errs, check.SupportedIf(path.Child("failurePolicy"), p.failure, v1.Ignore, v1.Fail)...)
	if p.params != nil {
		errs = append(errs, paramKind(p.params, path.Child("paramKind"))...)
	}
	if at := path.Child("matchConstraints"); p.match == nil {
		errs = append(errs, field.Required(at, ""))
	} else {
		errs = append(errs, validateMatch(p.match, p.labels, at)...)
		if len(p.match.ResourceRules) == 0 {
			errs = append(errs, field.Required(at.Child("resourceRules"), ""))
		}
	}
	c := compiler{known: p.known, params: p.params != nil}
	composed, err := plugincel.NewCompositedCompiler(base())
	if err != nil {
		return c, append(errs, field.InternalError(path, err))
	}
	c.with = composed
	for i, v := range p.variables {
		errs = append(errs, p.variable(v, c, composed, path.Child("variables").Index(i))...)
	}
	return c, append(errs, matchConditions(p.conditions, c, true, path.Child("matchConditions"))...)
}

// named is the expression of a variable.
type named struct {
	accessor

	name string
}

func (n named) GetName() string { return n.name }

func (p *policy) variable(v v1.Variable, c compiler, composed *plugincel.CompositedCompiler, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if v.Name == "" || strings.TrimSpace(v.Name) == "" {
		errs = append(errs, field.Required(path.Child("name"), "name is not specified"))
	} else if !identifier.MatchString(v.Name) {
		errs = append(errs, field.Invalid(path.Child("name"), v.Name, "name is not a valid CEL identifier"))
	}
	at := path.Child("expression")
	if v.Expression == "" || strings.TrimSpace(v.Expression) == "" {
		return append(errs, field.Required(at, "expression is not specified"))
	}
	mode := environment.NewExpressions
	if c.known.all.Has(v.Expression) {
		mode = environment.StoredExpressions
	}
	r := composed.CompileAndStoreVariable(named{accessor{v.Expression, []*cel.Type{cel.AnyType, cel.DynType}}, v.Name},
		plugincel.OptionalVariableDeclarations{HasParams: c.params, HasAuthorizer: true}, mode)
	if r.Error != nil {
		errs = append(errs, field.Invalid(at, v.Expression, r.Error.Error()))
	}
	return errs
}

func paramKind(p *v1.ParamKind, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	at := path.Child("apiVersion")
	if p.APIVersion == "" {
		errs = append(errs, field.Required(at, ""))
	} else if gv, err := schema.ParseGroupVersion(p.APIVersion); err != nil {
		errs = append(errs, field.Invalid(at, p.APIVersion, err.Error()))
	} else {
		if gv.Group != "" {
			errs = append(errs, check.Invalid(at, gv.Group, validation.IsDNS1123Subdomain(gv.Group))...)
		}
		errs = append(errs, check.Invalid(at, gv.Version, validation.IsDNS1035Label(gv.Version))...)
	}
	if p.Kind == "" {
		return append(errs, field.Required(path.Child("kind"), ""))
	}
	return append(errs, check.Invalid(path.Child("kind"), p.Kind, validation.IsDNS1035Label(strings.ToLower(p.Kind)))...)
}

func oneValidation(v *v1.Validation, c compiler, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	expression, message := strings.TrimSpace(v.Expression), strings.TrimSpace(v.Message)
	if expression == "" {
		errs = append(errs, field.Required(path.Child("expression"), "expression is not specified"))
	} else {
		errs = append(errs, c.check(v.Expression, path.Child("expression"), cel.BoolType)...)
	}
	if v.MessageExpression != "" && strings.TrimSpace(v.MessageExpression) == "" {
		errs = append(errs, field.Invalid(path.Child("messageExpression"), v.MessageExpression, "must be non-empty if specified"))
	} else if v.MessageExpression != "" {
		errs = append(errs, c.check(v.MessageExpression, path.Child("messageExpression"), cel.StringType)...)
	}
	at := path.Child("message")
	switch {
	case v.Message != "" && message == "":
		errs = append(errs, field.Invalid(at, v.Message, "message must be non-empty if specified"))
	case strings.Contains(message, "\n"):
		errs = append(errs, field.Invalid(at, v.Message, "message must not contain line breaks"))
	case strings.Contains(message, "\n") && message == "":
		errs = append(errs, field.Required(at, "message must be specified if expression contains line breaks"))
	}
	return append(errs, check.SupportedIf(path.Child("reason"), v.Reason, metav1.StatusReasonUnauthorized, metav1.StatusReasonForbidden,
		metav1.StatusReasonInvalid, metav1.StatusReasonRequestEntityTooLarge)...)
}

func auditAnnotations(all []v1.AuditAnnotation, policy string, c compiler, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(all) > maxAuditAnnotations {
		errs = append(errs, field.Invalid(path, all, "must not have more than 20 auditAnnotations"))
	}
	seen := sets.New[string]()
	for i, a := range all {
		at := path.Index(i)
		if errs = append(errs, check.Required(at.Child("key"), a.Key)...); a.Key != "" {
			// The key of the annotation that is written has the policy's name in front.
			errs = append(errs, check.Invalid(at.Child("key"), a.Key, validation.IsQualifiedName(policy+"/"+a.Key))...)
		}
		value := at.Child("valueExpression")
		switch text := strings.TrimSpace(a.ValueExpression); {
		case text == "":
			errs = append(errs, field.Required(value, "valueExpression is not specified"))
		case len(text) > maxAnnotationValue:
			errs = append(errs, field.Required(value, "must not exceed 5kb in length"))
		default:
			errs = append(errs, c.check(a.ValueExpression, value, cel.StringType, cel.NullType)...)
		}
		if seen.Has(a.Key) {
			errs = append(errs, field.Duplicate(at.Child("key"), a.Key))
		}
		seen.Insert(a.Key)
	}
	return errs
}

// ValidateMutatingPolicy holds a new policy to its rules.
func ValidateMutatingPolicy(o *v1.MutatingAdmissionPolicy) field.ErrorList {
	errs := check.Meta(o, false, check.SubdomainName)
	return append(errs, mutatingPolicy(o, nil)...)
}

// ValidateMutatingPolicyUpdate holds a changed policy to its rules.
func ValidateMutatingPolicyUpdate(o, old *v1.MutatingAdmissionPolicy) field.ErrorList {
	errs := append(check.Meta(o, false, check.SubdomainName), check.MetaUpdate(o, old)...)
	return append(errs, mutatingPolicy(o, old)...)
}

func mutatingPolicy(o, old *v1.MutatingAdmissionPolicy) field.ErrorList {
	s := &o.Spec
	p := policy{failure: s.FailurePolicy, params: s.ParamKind, match: s.MatchConstraints, conditions: s.MatchConditions, variables: s.Variables, labels: true}
	if old != nil {
		for _, m := range old.Spec.MatchConditions {
			p.known.add(m.Expression)
		}
		for _, v := range old.Spec.Variables {
			p.known.add(v.Expression)
		}
		for _, m := range old.Spec.Mutations {
			if m.ApplyConfiguration != nil {
				p.known.add(m.ApplyConfiguration.Expression)
			}
			if m.JSONPatch != nil {
				p.known.add(m.JSONPatch.Expression)
			}
		}
	}
	path := field.NewPath("spec")
	c, errs := p.validate(path)
	if len(s.Mutations) == 0 {
		errs = append(errs, field.Required(path.Child("mutations"), "mutations must contain at least one item"))
	}
	c.patch = true
	for i := range s.Mutations {
		errs = append(errs, mutation(&s.Mutations[i], c, path.Child("mutations").Index(i))...)
	}
	at := path.Child("reinvocationPolicy")
	if s.ReinvocationPolicy == "" {
		return append(errs, field.Required(at, ""))
	}
	return append(errs, check.Supported(at, s.ReinvocationPolicy, v1.NeverReinvocationPolicy, v1.IfNeededReinvocationPolicy)...)
}

func mutation(m *v1.Mutation, c compiler, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	patch := func(set bool, wanted v1.PatchType, name, expression string, types ...*cel.Type) {
		at := path.Child(name)
		switch {
		case m.PatchType != wanted && set:
			errs = append(errs, field.Invalid(at, expression, "is not of the patchType"))
		case m.PatchType == wanted && !set:
			errs = append(errs, field.Required(at, "must be specified with this patchType"))
		case set && strings.TrimSpace(expression) == "":
			errs = append(errs, field.Required(at.Child("expression"), "expression is not specified"))
		case set:
			errs = append(errs, c.check(expression, at.Child("expression"), types...)...)
		}
	}
	if m.PatchType == "" {
		return field.ErrorList{field.Required(path.Child("patchType"), "")}
	}
	if bad := check.Supported(path.Child("patchType"), m.PatchType, v1.PatchTypeApplyConfiguration, v1.PatchTypeJSONPatch); len(bad) > 0 {
		return bad
	}
	apply, json := m.ApplyConfiguration, m.JSONPatch
	text := ""
	if apply != nil {
		text = apply.Expression
	}
	patch(apply != nil, v1.PatchTypeApplyConfiguration, "applyConfiguration", text, cel.ObjectType("Object"))
	text = ""
	if json != nil {
		text = json.Expression
	}
	patch(json != nil, v1.PatchTypeJSONPatch, "jsonPatch", text, cel.ListType(cel.ObjectType("JSONPatch")))
	return errs
}

// ValidateValidatingBinding holds a new binding to its rules.
func ValidateValidatingBinding(o *v1.ValidatingAdmissionPolicyBinding) field.ErrorList {
	errs := check.Meta(o, false, check.SubdomainName)
	return append(errs, validatingBinding(o)...)
}

// ValidateValidatingBindingUpdate holds a changed binding to its rules.
func ValidateValidatingBindingUpdate(o, old *v1.ValidatingAdmissionPolicyBinding) field.ErrorList {
	errs := append(check.Meta(o, false, check.SubdomainName), check.MetaUpdate(o, old)...)
	return append(errs, validatingBinding(o)...)
}

func validatingBinding(o *v1.ValidatingAdmissionPolicyBinding) field.ErrorList {
	path := field.NewPath("spec")
	errs := binding(o.Spec.PolicyName, o.Spec.ParamRef, o.Spec.MatchResources, path)
	actions := path.Child("validationActions")
	if len(o.Spec.ValidationActions) == 0 {
		errs = append(errs, field.Required(actions, "at least one validation action is required"))
	}
	seen := sets.New[v1.ValidationAction]()
	for i, a := range o.Spec.ValidationActions {
		errs = append(errs, check.Supported(actions.Index(i), a, v1.Deny, v1.Warn, v1.Audit)...)
		if seen.Has(a) {
			errs = append(errs, field.Duplicate(actions.Index(i), a))
		}
		seen.Insert(a)
	}
	if seen.Has(v1.Deny) && seen.Has(v1.Warn) {
		errs = append(errs, field.Invalid(actions, o.Spec.ValidationActions, "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)"))
	}
	return errs
}

// ValidateMutatingBinding holds a new binding to its rules.
func ValidateMutatingBinding(o *v1.MutatingAdmissionPolicyBinding) field.ErrorList {
	errs := check.Meta(o, false, check.SubdomainName)
	return append(errs, binding(o.Spec.PolicyName, o.Spec.ParamRef, o.Spec.MatchResources, field.NewPath("spec"))...)
}

// ValidateMutatingBindingUpdate holds a changed binding to its rules.
func ValidateMutatingBindingUpdate(o, old *v1.MutatingAdmissionPolicyBinding) field.ErrorList {
	errs := append(check.Meta(o, false, check.SubdomainName), check.MetaUpdate(o, old)...)
	return append(errs, binding(o.Spec.PolicyName, o.Spec.ParamRef, o.Spec.MatchResources, field.NewPath("spec"))...)
}

func binding(policy string, ref *v1.ParamRef, match *v1.MatchResources, path *field.Path) field.ErrorList {
	errs := check.ObjectName(path.Child("policyName"), policy)
	if ref != nil {
		errs = append(errs, paramRef(ref, path.Child("paramRef"))...)
	}
	if match != nil {
		errs = append(errs, validateMatch(match, true, path.Child("matchResources"))...)
	}
	return errs
}

func paramRef(r *v1.ParamRef, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if r.Name != "" {
		errs = append(errs, check.Invalid(path.Child("name"), r.Name, content.IsPathSegmentName(r.Name))...)
		if r.Selector != nil {
			errs = append(errs, field.Forbidden(path.Child("name"), "name and selector are mutually exclusive"))
		}
	}
	if r.Selector != nil {
		errs = append(errs, check.Selector(path.Child("selector"), r.Selector)...)
		if r.Name != "" {
			errs = append(errs, field.Forbidden(path.Child("selector"), "name and selector are mutually exclusive"))
		}
	}
	if r.Name == "" && r.Selector == nil {
		errs = append(errs, field.Required(path, "one of name or selector must be specified"))
	}
	if r.ParameterNotFoundAction == nil || *r.ParameterNotFoundAction == "" {
		return append(errs, field.Required(path.Child("parameterNotFoundAction"), ""))
	}
	return append(errs, check.Supported(path.Child("parameterNotFoundAction"), *r.ParameterNotFoundAction, v1.AllowAction, v1.DenyAction)...)
}
