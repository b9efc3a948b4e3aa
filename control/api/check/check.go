// Package check has what the rules of many kinds are made of: filling what is missing, and telling what is wrong.
package check

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Or fills an empty value.
func Or[T comparable](at *T, value T) {
	var zero T
	if *at == zero {
		*at = value
	}
}

// OrNew fills a missing value.
func OrNew[T any](at **T, value T) {
	if *at == nil {
		*at = &value
	}
}

// Invalid makes an error of each message.
func Invalid[T any](path *field.Path, value T, messages []string) field.ErrorList {
	var errs field.ErrorList
	for _, m := range messages {
		errs = append(errs, field.Invalid(path, value, m))
	}
	return errs
}

// OneOf refuses what is not in the list; a missing value is told from a wrong one.
func OneOf[T ~string](path *field.Path, value T, allowed ...T) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return OneOfOrNone(path, value, allowed...)
}

// OneOfOrNone refuses what is neither empty nor in the list.
func OneOfOrNone[T ~string](path *field.Path, value T, allowed ...T) field.ErrorList {
	if value == "" {
		return nil
	}
	return Supported(path, value, allowed...)
}

// Supported refuses what is not in the list, an empty value too.
func Supported[T ~string](path *field.Path, value T, allowed ...T) field.ErrorList {
	if sets.New(allowed...).Has(value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, value, allowed)}
}

// SupportedIf refuses what is given and not in the list.
func SupportedIf[T ~string](path *field.Path, value *T, allowed ...T) field.ErrorList {
	if value == nil {
		return nil
	}
	return Supported(path, *value, allowed...)
}

// AtLeast refuses a number below the least.
func AtLeast[T int | int32 | int64](path *field.Path, value, least T) field.ErrorList {
	if value >= least {
		return nil
	}
	return field.ErrorList{field.Invalid(path, value, fmt.Sprintf("must be greater than or equal to %d", least))}
}

// AtLeastIf refuses a number that is given and below the least.
func AtLeastIf[T int | int32 | int64](path *field.Path, value *T, least T) field.ErrorList {
	if value == nil {
		return nil
	}
	return AtLeast(path, *value, least)
}

// Required refuses an empty text.
func Required[T ~string](path *field.Path, value T) field.ErrorList {
	if value != "" {
		return nil
	}
	return field.ErrorList{field.Required(path, "")}
}

// Subdomain refuses a name that is given and is no DNS subdomain.
func Subdomain(path *field.Path, name string) field.ErrorList {
	if name == "" {
		return nil
	}
	return Invalid(path, name, validation.IsDNS1123Subdomain(name))
}

// Label refuses a name that is given and is no DNS label.
func Label(path *field.Path, name string) field.ErrorList {
	if name == "" {
		return nil
	}
	return Invalid(path, name, validation.IsDNS1123Label(name))
}

// Qualified refuses what cannot be the key of a label.
func Qualified(path *field.Path, name string) field.ErrorList {
	return Invalid(path, name, content.IsLabelKey(name))
}

// ObjectName holds a reference to naming something.
func ObjectName(path *field.Path, name string) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return Invalid(path, name, apivalidation.NameIsDNSSubdomain(name, false))
}

// IP accepts what has always been accepted for an address, leading zeros too.
func IP(path *field.Path, address string) field.ErrorList {
	return validation.IsValidIPForLegacyField(path, address, false, nil)
}

// Port accepts the number of a port, or a name of one.
func Port(path *field.Path, p intstr.IntOrString) field.ErrorList {
	if p.Type == intstr.Int {
		return Invalid(path, p.IntValue(), validation.IsValidPortNum(p.IntValue()))
	}
	return Invalid(path, p.StrVal, validation.IsValidPortName(p.StrVal))
}

// Selector holds a selector to what can be matched.
func Selector(path *field.Path, s *metav1.LabelSelector) field.ErrorList {
	return metavalidation.ValidateLabelSelector(s, metavalidation.LabelSelectorValidationOptions{}, path)
}

// SelectorAsBefore is [Selector] for an update: what was accepted once still is.
func SelectorAsBefore(path *field.Path, s, old *metav1.LabelSelector) field.ErrorList {
	before := metavalidation.LabelSelectorValidationOptions{}
	lenient := old != nil && len(metavalidation.ValidateLabelSelector(old, before, path)) > 0
	return metavalidation.ValidateLabelSelector(s, metavalidation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: lenient}, path)
}

// Immutable refuses a change.
func Immutable(path *field.Path, now, old any) field.ErrorList {
	return apivalidation.ValidateImmutableField(now, old, path)
}

// NameRule says what is wrong with a name; a prefix is what a generated name begins with.
type NameRule = apivalidation.ValidateNameFunc

// Meta holds the metadata of a new object to its rules.
func Meta(o metav1.Object, namespaced bool, rule NameRule) field.ErrorList {
	return apivalidation.ValidateObjectMetaAccessor(o, namespaced, rule, field.NewPath("metadata"))
}

// MetaUpdate holds changed metadata to its rules.
func MetaUpdate(o, old metav1.Object) field.ErrorList {
	return apivalidation.ValidateObjectMetaAccessorUpdate(o, old, field.NewPath("metadata"))
}

// Names that many kinds have.
var (
	SubdomainName NameRule = apivalidation.NameIsDNSSubdomain
	LabelName     NameRule = apivalidation.NameIsDNSLabel
)

// Share accepts a number that is not negative, or a percentage.
func Share(path *field.Path, v intstr.IntOrString) field.ErrorList {
	switch v.Type {
	case intstr.String:
		return Invalid(path, v, validation.IsValidPercent(v.StrVal))
	case intstr.Int:
		return AtLeast(path, v.IntVal, 0)
	}
	return field.ErrorList{field.Invalid(path, v, "must be an integer or percentage (e.g '5%')")}
}

// Percent reads a percentage; a number, or what is none, is not one.
func Percent(v intstr.IntOrString) (int, bool) {
	if v.Type != intstr.String || len(validation.IsValidPercent(v.StrVal)) > 0 {
		return 0, false
	}
	n, err := strconv.Atoi(strings.TrimSuffix(v.StrVal, "%"))
	return n, err == nil
}

// AtMostAll refuses more than 100 %.
func AtMostAll(path *field.Path, v intstr.IntOrString) field.ErrorList {
	if n, ok := Percent(v); ok && n > 100 {
		return field.ErrorList{field.Invalid(path, v, "must not be greater than 100%")}
	}
	return nil
}

// NoneOf says whether a number or percentage comes to nothing.
func NoneOf(v intstr.IntOrString) bool {
	if n, ok := Percent(v); ok {
		return n == 0
	}
	return v.IntVal == 0
}
