package core

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api"
	"github.com/berth-node/berth/control/api/check"
)

// SetPodTemplateDefaults fills in what is missing.
func SetPodTemplateDefaults(o *corev1.PodTemplate) { api.SetTemplateDefaults(&o.Template.Spec) }

// ValidatePodTemplate holds a new template to its rules.
func ValidatePodTemplate(o *corev1.PodTemplate) field.ErrorList {
	return append(check.Meta(o, true, check.SubdomainName), api.ValidateTemplate(&o.Template, field.NewPath("template"))...)
}

// ValidatePodTemplateUpdate holds a changed template to its rules.
func ValidatePodTemplateUpdate(o, old *corev1.PodTemplate) field.ErrorList {
	return append(check.MetaUpdate(o, old), api.ValidateTemplate(&o.Template, field.NewPath("template"))...)
}

// SetControllerDefaults fills in what is missing, much of it from the template.
func SetControllerDefaults(o *corev1.ReplicationController) {
	check.OrNew(&o.Spec.Replicas, 1)
	t := o.Spec.Template
	if t == nil {
		return
	}
	api.SetTemplateDefaults(&t.Spec)
	if len(o.Spec.Selector) == 0 {
		o.Spec.Selector = t.Labels
	}
	if len(o.Labels) == 0 {
		o.Labels = t.Labels
	}
}

// ValidateController holds a new controller to its rules.
func ValidateController(o *corev1.ReplicationController) field.ErrorList {
	return append(check.Meta(o, true, check.SubdomainName), controllerSpec(&o.Spec)...)
}

// ValidateControllerUpdate holds a changed controller to its rules.
func ValidateControllerUpdate(o, old *corev1.ReplicationController) field.ErrorList {
	return append(check.MetaUpdate(o, old), controllerSpec(&o.Spec)...)
}

func controllerSpec(s *corev1.ReplicationControllerSpec) field.ErrorList {
	path := field.NewPath("spec")
	errs := check.AtLeast(path.Child("minReadySeconds"), s.MinReadySeconds, 0)
	if len(s.Selector) == 0 {
		errs = append(errs, field.Required(path.Child("selector"), ""))
	}
	errs = append(errs, check.AtLeastIf(path.Child("replicas"), s.Replicas, 0)...)
	t, at := s.Template, path.Child("template")
	if t == nil {
		return append(errs, field.Required(at, ""))
	}
	if len(s.Selector) > 0 && !labels.SelectorFromSet(s.Selector).Matches(labels.Set(t.Labels)) {
		errs = append(errs, field.Invalid(at.Child("metadata", "labels"), t.Labels, "`selector` does not match template `labels`"))
	}
	errs = append(errs, api.ValidateTemplate(t, at)...)
	errs = append(errs, check.Supported(at.Child("spec", "restartPolicy"), t.Spec.RestartPolicy, corev1.RestartPolicyAlways)...)
	if t.Spec.ActiveDeadlineSeconds != nil {
		errs = append(errs, field.Forbidden(at.Child("spec", "activeDeadlineSeconds"), "is not supported for pods that are kept running"))
	}
	return errs
}
