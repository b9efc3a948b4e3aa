// Package flowcontrol has the defaults and rules of flow schemas and priority levels.
package flowcontrol

import (
	"fmt"
	"strings"

	flowv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api/check"
)

const (
	defaultPrecedence = 1000
	maxPrecedence     = 10_000
	defaultShares     = 30
	defaultQueues     = 64
	defaultHand       = 8
	defaultLength     = 50
	maxQueues         = 10_000_000
	maxHandBits       = 60 // of the random number that a hand is dealt from
)

// SetSchemaDefaults fills in what is missing.
func SetSchemaDefaults(o *flowv1.FlowSchema) { check.Or(&o.Spec.MatchingPrecedence, defaultPrecedence) }

// ValidateSchema holds a new schema to its rules.
func ValidateSchema(o *flowv1.FlowSchema) field.ErrorList {
	errs := check.Meta(o, false, check.SubdomainName)
	s, path := &o.Spec, field.NewPath("spec")
	if p := s.MatchingPrecedence; p <= 0 {
		errs = append(errs, field.Invalid(path.Child("matchingPrecedence"), p, "must be a positive value"))
	} else if p > maxPrecedence {
		errs = append(errs, field.Invalid(path.Child("matchingPrecedence"), p, fmt.Sprintf("must not be greater than %d", maxPrecedence)))
	}
	if s.MatchingPrecedence == 1 && o.Name != flowv1.FlowSchemaNameExempt {
		errs = append(errs, field.Invalid(path.Child("matchingPrecedence"), 1, "only the schema named 'exempt' may have matchingPrecedence 1"))
	}
	if d := s.DistinguisherMethod; d != nil {
		errs = append(errs, check.Supported(path.Child("distinguisherMethod").Child("type"), d.Type, flowv1.FlowDistinguisherMethodByNamespaceType, flowv1.FlowDistinguisherMethodByUserType)...)
	}
	at := path.Child("priorityLevelConfiguration", "name")
	if n := s.PriorityLevelConfiguration.Name; n == "" {
		errs = append(errs, field.Required(at, "must reference a priority level"))
	} else {
		errs = append(errs, check.Invalid(at, n, validation.IsDNS1123Subdomain(n))...)
	}
	for i := range s.Rules {
		errs = append(errs, rule(&s.Rules[i], path.Child("rules").Index(i))...)
	}
	var types []string
	for _, c := range o.Status.Conditions {
		types = append(types, string(c.Type))
	}
	return append(errs, conditions(types)...)
}

func conditions(types []string) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, t := range types {
		at := field.NewPath("status", "conditions").Index(i).Child("type")
		if t == "" {
			errs = append(errs, field.Required(at, ""))
		}
		if seen.Has(t) {
			errs = append(errs, field.Duplicate(at, t))
		}
		seen.Insert(t)
	}
	return errs
}

// ValidateSchemaUpdate holds a changed schema to its rules.
func ValidateSchemaUpdate(o, old *flowv1.FlowSchema) field.ErrorList {
	return append(ValidateSchema(o), check.MetaUpdate(o, old)...)
}

func rule(r *flowv1.PolicyRulesWithSubjects, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(r.Subjects) == 0 {
		errs = append(errs, field.Required(path.Child("subjects"), "subjects must contain at least one value"))
	}
	for i := range r.Subjects {
		errs = append(errs, subject(&r.Subjects[i], path.Child("subjects").Index(i))...)
	}
	if len(r.ResourceRules) == 0 && len(r.NonResourceRules) == 0 {
		errs = append(errs, field.Required(path, "at least one of resourceRules and nonResourceRules has to be non-empty"))
	}
	for i := range r.ResourceRules {
		n, at := &r.ResourceRules[i], path.Child("resourceRules").Index(i)
		errs = append(errs, verbs(n.Verbs, at)...)
		errs = append(errs, list(n.APIGroups, at.Child("apiGroups"), "apiGroups")...)
		errs = append(errs, list(n.Resources, at.Child("resources"), "resources")...)
		if len(n.Namespaces) == 0 && !n.ClusterScope {
			errs = append(errs, field.Required(at.Child("namespaces"), "resource rules that are not cluster scoped must supply at least one namespace"))
		} else if len(n.Namespaces) > 1 && hasAll(n.Namespaces) {
			errs = append(errs, field.Invalid(at.Child("namespaces"), n.Namespaces, "if '*' is present, must not specify other namespaces"))
		} else {
			for j, s := range n.Namespaces {
				if s != "*" {
					errs = append(errs, check.Invalid(at.Child("namespaces").Index(j), s, validation.IsDNS1123Label(s))...)
				}
			}
		}
	}
	for i := range r.NonResourceRules {
		n, at := &r.NonResourceRules[i], path.Child("nonResourceRules").Index(i)
		errs = append(errs, verbs(n.Verbs, at)...)
		errs = append(errs, urls(n.NonResourceURLs, at.Child("nonResourceURLs"))...)
	}
	return errs
}

func hasAll(list []string) bool { return sets.New(list...).Has("*") }

func verbs(all []string, path *field.Path) field.ErrorList {
	at := path.Child("verbs")
	if len(all) == 0 {
		return field.ErrorList{field.Required(at, "verbs must contain at least one value")}
	}
	if hasAll(all) {
		if len(all) > 1 {
			return field.ErrorList{field.Invalid(at, all, "if '*' is present, must not specify other verbs")}
		}
		return nil
	}
	known := []string{"get", "list", "create", "update", "patch", "delete", "deletecollection", "watch", "proxy", "connect", "head", "options", "post", "put", "trace"}
	if !sets.New(known...).HasAll(all...) {
		return field.ErrorList{field.NotSupported(at, all, known)}
	}
	return nil
}

func list(all []string, path *field.Path, what string) field.ErrorList {
	if len(all) == 0 {
		return field.ErrorList{field.Required(path, "resource rules must supply at least one of "+what)}
	}
	if len(all) > 1 && hasAll(all) {
		return field.ErrorList{field.Invalid(path, all, "if '*' is present, must not specify other "+what)}
	}
	return nil
}

func urls(all []string, path *field.Path) field.ErrorList {
	if len(all) == 0 {
		return field.ErrorList{field.Required(path, "nonResourceURLs must contain at least one value")}
	}
	if len(all) > 1 && hasAll(all) {
		return field.ErrorList{field.Invalid(path, all, "if '*' is present, must not specify other non-resource URLs")}
	}
	var errs field.ErrorList
	for i, u := range all {
		at := path.Index(i)
		switch {
		case u == "*":
		case u == "":
			errs = append(errs, field.Invalid(at, u, "must not be empty"))
		case u == "/":
		case !strings.HasPrefix(u, "/"):
			errs = append(errs, field.Invalid(at, u, "must start with slash"))
		case strings.Contains(u, " "):
			errs = append(errs, field.Invalid(at, u, "must not contain white-space"))
		case strings.Contains(u, "//"):
			errs = append(errs, field.Invalid(at, u, "must not contain double slash"))
		case strings.Contains(strings.TrimSuffix(u, "*"), "*") || strings.HasSuffix(u, "*") && !strings.HasSuffix(u, "/*"):
			errs = append(errs, field.Invalid(at, u, "wildcard can only do suffix matching"))
		}
	}
	return errs
}

func subject(s *flowv1.Subject, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	set := map[string]bool{"user": s.User != nil, "group": s.Group != nil, "serviceAccount": s.ServiceAccount != nil}
	kinds := map[flowv1.SubjectKind]string{flowv1.SubjectKindUser: "user", flowv1.SubjectKindGroup: "group", flowv1.SubjectKindServiceAccount: "serviceAccount"}
	want, ok := kinds[s.Kind]
	if !ok {
		return field.ErrorList{field.NotSupported(path.Child("kind"), s.Kind, []flowv1.SubjectKind{flowv1.SubjectKindUser, flowv1.SubjectKindGroup, flowv1.SubjectKindServiceAccount})}
	}
	for _, name := range []string{"user", "group", "serviceAccount"} {
		switch {
		case name == want && !set[name]:
			errs = append(errs, field.Required(path.Child(name), name+" is required when subject kind is '"+string(s.Kind)+"'"))
		case name != want && set[name]:
			errs = append(errs, field.Forbidden(path.Child(name), name+" is forbidden when subject kind is not its own"))
		}
	}
	switch {
	case want == "user" && s.User != nil:
		errs = append(errs, check.Required(path.Child("user", "name"), s.User.Name)...)
	case want == "group" && s.Group != nil:
		errs = append(errs, check.Required(path.Child("group", "name"), s.Group.Name)...)
	case want == "serviceAccount" && s.ServiceAccount != nil:
		a, at := s.ServiceAccount, path.Child("serviceAccount")
		if a.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		} else if a.Name != "*" {
			errs = append(errs, check.Invalid(at.Child("name"), a.Name, validation.IsDNS1123Subdomain(a.Name))...)
		}
		if a.Namespace == "" {
			errs = append(errs, field.Required(at.Child("namespace"), "must specify namespace for service account"))
		} else {
			errs = append(errs, check.Invalid(at.Child("namespace"), a.Namespace, validation.IsDNS1123Label(a.Namespace))...)
		}
	}
	return errs
}

// SetLevelDefaults fills in what is missing.
func SetLevelDefaults(o *flowv1.PriorityLevelConfiguration) {
	if e := o.Spec.Exempt; e != nil {
		check.OrNew(&e.NominalConcurrencyShares, 0)
		check.OrNew(&e.LendablePercent, 0)
	}
	l := o.Spec.Limited
	if l == nil {
		return
	}
	check.OrNew(&l.NominalConcurrencyShares, defaultShares)
	check.OrNew(&l.LendablePercent, 0)
	if q := l.LimitResponse.Queuing; q != nil {
		check.Or(&q.HandSize, defaultHand)
		check.Or(&q.Queues, defaultQueues)
		check.Or(&q.QueueLengthLimit, defaultLength)
	}
}

// ValidateLevel holds a new level to its rules.
func ValidateLevel(o *flowv1.PriorityLevelConfiguration) field.ErrorList {
	errs := check.Meta(o, false, check.SubdomainName)
	s, path := &o.Spec, field.NewPath("spec")
	if (o.Name == flowv1.PriorityLevelConfigurationNameExempt) != (s.Type == flowv1.PriorityLevelEnablementExempt) {
		errs = append(errs, field.Invalid(path.Child("type"), s.Type, "type must be 'Exempt' if and only if name is 'exempt'"))
	}
	switch s.Type {
	case flowv1.PriorityLevelEnablementExempt:
		if s.Limited != nil {
			errs = append(errs, field.Forbidden(path.Child("limited"), "must be nil if the type is not Limited"))
		}
		if e := s.Exempt; e != nil {
			at := path.Child("exempt")
			errs = append(errs, check.AtLeastIf(at.Child("nominalConcurrencyShares"), e.NominalConcurrencyShares, 0)...)
			errs = append(errs, percent(at.Child("lendablePercent"), e.LendablePercent)...)
		}
	case flowv1.PriorityLevelEnablementLimited:
		if s.Exempt != nil {
			errs = append(errs, field.Forbidden(path.Child("exempt"), "must be nil if the type is Limited"))
		}
		if s.Limited == nil {
			errs = append(errs, field.Required(path.Child("limited"), "must not be empty when type is Limited"))
		} else {
			errs = append(errs, limited(s.Limited, path.Child("limited"))...)
		}
	default:
		errs = append(errs, check.OneOf(path.Child("type"), s.Type, flowv1.PriorityLevelEnablementExempt, flowv1.PriorityLevelEnablementLimited)...)
	}
	var types []string
	for _, c := range o.Status.Conditions {
		types = append(types, string(c.Type))
	}
	return append(errs, conditions(types)...)
}

// ValidateLevelUpdate holds a changed level to its rules.
func ValidateLevelUpdate(o, old *flowv1.PriorityLevelConfiguration) field.ErrorList {
	return append(ValidateLevel(o), check.MetaUpdate(o, old)...)
}

func percent(path *field.Path, p *int32) field.ErrorList {
	if p == nil || *p >= 0 && *p <= 100 {
		return nil
	}
	return field.ErrorList{field.Invalid(path, *p, "must be between 0 and 100, inclusive")}
}

func limited(l *flowv1.LimitedPriorityLevelConfiguration, path *field.Path) field.ErrorList {
	errs := check.AtLeastIf(path.Child("nominalConcurrencyShares"), l.NominalConcurrencyShares, 0)
	errs = append(errs, percent(path.Child("lendablePercent"), l.LendablePercent)...)
	if b := l.BorrowingLimitPercent; b != nil && *b < 0 {
		errs = append(errs, field.Invalid(path.Child("borrowingLimitPercent"), *b, "if specified, must be a non-negative integer"))
	}
	at := path.Child("limitResponse")
	q := l.LimitResponse.Queuing
	switch l.LimitResponse.Type {
	case flowv1.LimitResponseTypeReject:
		if q != nil {
			errs = append(errs, field.Forbidden(at.Child("queuing"), "must be nil if limited.limitResponse.type is not Limited"))
		}
	case flowv1.LimitResponseTypeQueue:
		if q == nil {
			errs = append(errs, field.Required(at.Child("queuing"), "must not be empty if limited.limitResponse.type is Limited"))
		} else {
			errs = append(errs, queuing(q, at.Child("queuing"))...)
		}
	default:
		errs = append(errs, check.OneOf(at.Child("type"), l.LimitResponse.Type, flowv1.LimitResponseTypeQueue, flowv1.LimitResponseTypeReject)...)
	}
	return errs
}

func queuing(q *flowv1.QueuingConfiguration, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if q.QueueLengthLimit <= 0 {
		errs = append(errs, field.Invalid(path.Child("queueLengthLimit"), q.QueueLengthLimit, "must be positive"))
	}
	switch {
	case q.Queues <= 0:
		errs = append(errs, field.Invalid(path.Child("queues"), q.Queues, "must be positive"))
	case q.Queues > maxQueues:
		errs = append(errs, field.Invalid(path.Child("queues"), q.Queues, fmt.Sprintf("must not be greater than %d", maxQueues)))
	}
	switch {
	case q.HandSize <= 0:
		errs = append(errs, field.Invalid(path.Child("handSize"), q.HandSize, "must be positive"))
	case q.HandSize > q.Queues:
		errs = append(errs, field.Invalid(path.Child("handSize"), q.HandSize, "should not be greater than queues"))
	case !dealable(q.Queues, q.HandSize):
		errs = append(errs, field.Invalid(path.Child("handSize"), q.HandSize, "required entropy bits of the hand exceed 60"))
	}
	return errs
}

// dealable says whether a hand takes no more randomness than one number of 64 bits has to spare.
func dealable(queues, hand int32) bool {
	hands := 1.0
	for i := range hand {
		if hands *= float64(queues - i); hands > 1<<maxHandBits {
			return false
		}
	}
	return true
}
