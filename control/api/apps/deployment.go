// Package apps has the defaults and rules of the controllers that keep pods: deployments, sets of replicas, stateful
// sets, daemon sets.
package apps

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api"
	"github.com/berth-node/berth/control/api/check"
)

const (
	historyLimit     = 10
	progressDeadline = 600 // seconds
)

// SetDeploymentDefaults fills in what is missing.
func SetDeploymentDefaults(o *appsv1.Deployment) {
	api.SetTemplateDefaults(&o.Spec.Template.Spec)
	check.OrNew(&o.Spec.Replicas, 1)
	s := &o.Spec.Strategy
	check.Or(&s.Type, appsv1.RollingUpdateDeploymentStrategyType)
	if s.Type == appsv1.RollingUpdateDeploymentStrategyType {
		check.OrNew(&s.RollingUpdate, appsv1.RollingUpdateDeployment{})
		check.OrNew(&s.RollingUpdate.MaxUnavailable, intstr.FromString("25%"))
		check.OrNew(&s.RollingUpdate.MaxSurge, intstr.FromString("25%"))
	}
	check.OrNew(&o.Spec.RevisionHistoryLimit, historyLimit)
	check.OrNew(&o.Spec.ProgressDeadlineSeconds, progressDeadline)
}

// ValidateDeployment holds a new deployment to its rules.
func ValidateDeployment(o *appsv1.Deployment) field.ErrorList {
	return append(check.Meta(o, true, check.SubdomainName), deploymentSpec(&o.Spec, nil)...)
}

// ValidateDeploymentUpdate holds a changed deployment to its rules: which pods are its own stays.
func ValidateDeploymentUpdate(o, old *appsv1.Deployment) field.ErrorList {
	errs := append(check.MetaUpdate(o, old), deploymentSpec(&o.Spec, old.Spec.Selector)...)
	return append(errs, check.Immutable(field.NewPath("spec", "selector"), o.Spec.Selector, old.Spec.Selector)...)
}

func deploymentSpec(s *appsv1.DeploymentSpec, old *metav1.LabelSelector) field.ErrorList {
	path := field.NewPath("spec")
	errs := check.AtLeast(path.Child("replicas"), *s.Replicas, 0)
	errs = append(errs, selected(s.Selector, old, &s.Template, path)...)
	errs = append(errs, deploymentStrategy(&s.Strategy, path.Child("strategy"))...)
	errs = append(errs, check.AtLeast(path.Child("minReadySeconds"), s.MinReadySeconds, 0)...)
	errs = append(errs, check.AtLeastIf(path.Child("revisionHistoryLimit"), s.RevisionHistoryLimit, 0)...)
	if d := s.ProgressDeadlineSeconds; d != nil {
		errs = append(errs, check.AtLeast(path.Child("progressDeadlineSeconds"), *d, 0)...)
		if *d <= s.MinReadySeconds {
			errs = append(errs, field.Invalid(path.Child("progressDeadlineSeconds"), *d, "must be greater than minReadySeconds"))
		}
	}
	return errs
}

// selected holds selector and template to each other: a controller that does not select its own pods makes more of them
// for ever.
func selected(s, old *metav1.LabelSelector, t *corev1.PodTemplateSpec, path *field.Path) field.ErrorList {
	at := path.Child("selector")
	if s == nil {
		return append(field.ErrorList{field.Required(at, "")}, template(labels.Nothing(), t, path.Child("template"))...)
	}
	errs := check.SelectorAsBefore(at, s, old)
	if len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
		errs = append(errs, field.Invalid(at, s, "empty selector is invalid"))
	}
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return append(errs, field.Invalid(at, s, "invalid label selector"))
	}
	return append(errs, template(selector, t, path.Child("template"))...)
}

// template holds the template of pods that are kept running for ever to its rules.
func template(selector labels.Selector, t *corev1.PodTemplateSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if !selector.Empty() && !selector.Matches(labels.Set(t.Labels)) {
		errs = append(errs, field.Invalid(path.Child("metadata", "labels"), t.Labels, "`selector` does not match template `labels`"))
	}
	errs = append(errs, api.ValidateTemplate(t, path)...)
	return append(errs, forever(t, path.Child("spec"))...)
}

func forever(t *corev1.PodTemplateSpec, path *field.Path) field.ErrorList {
	errs := check.Supported(path.Child("restartPolicy"), t.Spec.RestartPolicy, corev1.RestartPolicyAlways)
	if t.Spec.ActiveDeadlineSeconds != nil {
		errs = append(errs, field.Forbidden(path.Child("activeDeadlineSeconds"), "is not supported for pods that are kept running"))
	}
	return errs
}

func deploymentStrategy(s *appsv1.DeploymentStrategy, path *field.Path) field.ErrorList {
	at := path.Child("rollingUpdate")
	switch s.Type {
	case appsv1.RecreateDeploymentStrategyType:
		if s.RollingUpdate != nil {
			return field.ErrorList{field.Forbidden(at, "may not be specified when strategy `type` is 'Recreate'")}
		}
		return nil
	case appsv1.RollingUpdateDeploymentStrategyType:
	default:
		return field.ErrorList{field.NotSupported(path.Child("type"), s.Type, []appsv1.DeploymentStrategyType{
			appsv1.RecreateDeploymentStrategyType, appsv1.RollingUpdateDeploymentStrategyType,
		})}
	}
	if s.RollingUpdate == nil {
		return field.ErrorList{field.Required(at, "this should be defaulted and never be nil")}
	}
	less, more := *s.RollingUpdate.MaxUnavailable, *s.RollingUpdate.MaxSurge
	errs := check.Share(at.Child("maxUnavailable"), less)
	errs = append(errs, check.Share(at.Child("maxSurge"), more)...)
	if check.NoneOf(less) && check.NoneOf(more) {
		errs = append(errs, field.Invalid(at.Child("maxUnavailable"), less, "may not be 0 when `maxSurge` is 0"))
	}
	return append(errs, check.AtMostAll(at.Child("maxUnavailable"), less)...)
}

// SetReplicaSetDefaults fills in what is missing.
func SetReplicaSetDefaults(o *appsv1.ReplicaSet) {
	api.SetTemplateDefaults(&o.Spec.Template.Spec)
	check.OrNew(&o.Spec.Replicas, 1)
}

// ValidateReplicaSet holds a new set to its rules.
func ValidateReplicaSet(o *appsv1.ReplicaSet) field.ErrorList {
	return append(check.Meta(o, true, check.SubdomainName), replicaSetSpec(&o.Spec, nil)...)
}

// ValidateReplicaSetUpdate holds a changed set to its rules.
func ValidateReplicaSetUpdate(o, old *appsv1.ReplicaSet) field.ErrorList {
	errs := append(check.MetaUpdate(o, old), replicaSetSpec(&o.Spec, old.Spec.Selector)...)
	return append(errs, check.Immutable(field.NewPath("spec", "selector"), o.Spec.Selector, old.Spec.Selector)...)
}

func replicaSetSpec(s *appsv1.ReplicaSetSpec, old *metav1.LabelSelector) field.ErrorList {
	path := field.NewPath("spec")
	errs := check.AtLeast(path.Child("replicas"), *s.Replicas, 0)
	errs = append(errs, check.AtLeast(path.Child("minReadySeconds"), s.MinReadySeconds, 0)...)
	return append(errs, selected(s.Selector, old, &s.Template, path)...)
}

// ValidateControllerRevision holds a new revision to its rules.
func ValidateControllerRevision(o *appsv1.ControllerRevision) field.ErrorList {
	errs := check.Meta(o, true, check.SubdomainName)
	if o.Data.Raw == nil && o.Data.Object == nil {
		errs = append(errs, field.Required(field.NewPath("data"), "data is mandatory"))
	}
	return append(errs, check.AtLeast(field.NewPath("revision"), o.Revision, 0)...)
}

// ValidateControllerRevisionUpdate holds a changed revision to its rules: its data stays.
func ValidateControllerRevisionUpdate(o, old *appsv1.ControllerRevision) field.ErrorList {
	errs := append(check.MetaUpdate(o, old), check.Meta(o, true, check.SubdomainName)...)
	errs = append(errs, check.AtLeast(field.NewPath("revision"), o.Revision, 0)...)
	return append(errs, check.Immutable(field.NewPath("data"), o.Data, old.Data)...)
}
