package core

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api/check"
)

// ValidateEvent holds a new event of the core group to its rules: it stands with what it tells of.
func ValidateEvent(o *corev1.Event) field.ErrorList {
	errs := append(check.Meta(o, true, check.SubdomainName), involved(o)...)
	if o.EventTime.IsZero() {
		return errs
	}
	// It is one of events.k8s.io in the older form.
	path := field.NewPath("reportingComponent")
	errs = append(errs, check.Required(path, o.ReportingController)...)
	errs = append(errs, check.Invalid(path, o.ReportingController, validation.IsQualifiedName(o.ReportingController))...)
	errs = append(errs, check.Required(field.NewPath("reportingInstance"), o.ReportingInstance)...)
	errs = append(errs, check.Required(field.NewPath("action"), o.Action)...)
	return append(errs, check.Required(field.NewPath("reason"), o.Reason)...)
}

func involved(o *corev1.Event) field.ErrorList {
	path := field.NewPath("involvedObject", "namespace")
	at := o.InvolvedObject.Namespace
	switch {
	case at == "" && o.Namespace != "default" && o.Namespace != "kube-system":
		return field.ErrorList{field.Invalid(path, at, "does not match event.namespace")}
	case at != "" && at != o.Namespace:
		return field.ErrorList{field.Invalid(path, at, "does not match event.namespace")}
	}
	return nil
}

// ValidateEventUpdate holds a changed event to its rules.
func ValidateEventUpdate(o, old *corev1.Event) field.ErrorList {
	return append(ValidateEvent(o), check.MetaUpdate(o, old)...)
}
