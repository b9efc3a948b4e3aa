package resource

import (
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api"
	"github.com/berth-node/berth/control/api/check"
)

// SetTaintRuleDefaults fills in when the taint of a rule was added.
func SetTaintRuleDefaults(o *resourcev1.DeviceTaintRule) {
	if o.Spec.Taint.TimeAdded == nil {
		// As it is told, and so that it is the same before and after it was.
		now := metav1.NewTime(time.Now().Truncate(time.Second))
		o.Spec.Taint.TimeAdded = &now
	}
}

// ValidateTaintRule holds a new rule that taints devices to its rules.
func ValidateTaintRule(o *resourcev1.DeviceTaintRule) field.ErrorList {
	errs := check.Meta(o, false, check.SubdomainName)
	return merge(append(errs, taintRule(&o.Spec)...), generated(resourcev1.Validate_DeviceTaintRuleSpec, &o.Spec, nil))
}

// ValidateTaintRuleUpdate holds a changed rule that taints devices to its rules.
func ValidateTaintRuleUpdate(o, old *resourcev1.DeviceTaintRule) field.ErrorList {
	errs := append(check.Meta(o, false, check.SubdomainName), check.MetaUpdate(o, old)...)
	errs = append(errs, taintRule(&o.Spec)...)
	path := field.NewPath("status", "conditions")
	if n := len(o.Status.Conditions); n > resourcev1.DeviceTaintRuleStatusMaxConditions {
		errs = append(errs, field.TooMany(path, n, resourcev1.DeviceTaintRuleStatusMaxConditions))
	}
	errs = append(errs, metavalidation.ValidateConditions(o.Status.Conditions, path)...)
	return merge(errs, generated(resourcev1.Validate_DeviceTaintRuleSpec, &o.Spec, &old.Spec))
}

func taintRule(s *resourcev1.DeviceTaintRuleSpec) field.ErrorList {
	path := field.NewPath("spec")
	var errs field.ErrorList
	if d := s.DeviceSelector; d != nil {
		at := path.Child("deviceSelector")
		if d.Driver != nil {
			errs = append(errs, api.ValidateDriverName(at.Child("driver"), *d.Driver)...)
		}
		if d.Pool != nil {
			errs = append(errs, api.ValidatePoolName(at.Child("pool"), *d.Pool)...)
		}
		if d.Device != nil {
			errs = append(errs, check.Label(at.Child("device"), *d.Device)...)
		}
	}
	at := path.Child("taint")
	errs = append(errs, metavalidation.ValidateLabelName(s.Taint.Key, at.Child("key"))...)
	if s.Taint.Value != "" {
		errs = append(errs, check.Invalid(at.Child("value"), s.Taint.Value, validation.IsValidLabelValue(s.Taint.Value))...)
	}
	return errs
}
