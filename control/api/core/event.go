package core

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api/check"
)

// ValidateEvent holds a new event of the core group to its rules: it stands with what it tells of.
func ValidateEvent(o *corev1.Event) field.ErrorList {
	return append(check.Meta(o, true, check.SubdomainName), involved(o)...)
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
