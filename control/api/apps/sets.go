package apps

import (
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api"
	"github.com/berth-node/berth/control/api/check"
	"github.com/berth-node/berth/control/api/core"
)

// SetStatefulSetDefaults fills in what is missing.
func SetStatefulSetDefaults(o *appsv1.StatefulSet) {
	s := &o.Spec
	api.SetTemplateDefaults(&s.Template.Spec)
	for i := range s.VolumeClaimTemplates {
		core.SetClaimDefaults(&s.VolumeClaimTemplates[i])
		// They are stored with their kind, which those that make claims of them read.
		check.Or(&s.VolumeClaimTemplates[i].Kind, "PersistentVolumeClaim")
		check.Or(&s.VolumeClaimTemplates[i].APIVersion, "v1")
	}
	check.Or(&s.PodManagementPolicy, appsv1.OrderedReadyPodManagement)
	if check.Or(&s.UpdateStrategy.Type, appsv1.RollingUpdateStatefulSetStrategyType); s.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType {
		check.OrNew(&s.UpdateStrategy.RollingUpdate, appsv1.RollingUpdateStatefulSetStrategy{})
		check.OrNew(&s.UpdateStrategy.RollingUpdate.Partition, 0)
	}
	check.OrNew(&s.PersistentVolumeClaimRetentionPolicy, appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{})
	check.Or(&s.PersistentVolumeClaimRetentionPolicy.WhenDeleted, appsv1.RetainPersistentVolumeClaimRetentionPolicyType)
	check.Or(&s.PersistentVolumeClaimRetentionPolicy.WhenScaled, appsv1.RetainPersistentVolumeClaimRetentionPolicyType)
	check.OrNew(&s.Replicas, 1)
	check.OrNew(&s.RevisionHistoryLimit, historyLimit)
}

// ValidateStatefulSet holds a new set to its rules.
func ValidateStatefulSet(o *appsv1.StatefulSet) field.ErrorList {
	return append(check.Meta(o, true, check.SubdomainName), statefulSpec(&o.Spec, nil)...)
}

// ValidateStatefulSetUpdate holds a changed set to its rules: only some fields of one change.
func ValidateStatefulSetUpdate(o, old *appsv1.StatefulSet) field.ErrorList {
	errs := append(check.MetaUpdate(o, old), statefulSpec(&o.Spec, &old.Spec)...)
	now, was := o.Spec.DeepCopy(), &old.Spec
	now.Replicas, now.Template, now.UpdateStrategy = was.Replicas, was.Template, was.UpdateStrategy
	now.MinReadySeconds, now.Ordinals, now.RevisionHistoryLimit = was.MinReadySeconds, was.Ordinals, was.RevisionHistoryLimit
	now.PersistentVolumeClaimRetentionPolicy = was.PersistentVolumeClaimRetentionPolicy
	if !equality.Semantic.DeepEqual(now, was) {
		errs = append(errs, field.Forbidden(field.NewPath("spec"), "updates to statefulset spec for fields other than 'replicas', 'ordinals', "+
			"'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"))
	}
	return errs
}

func statefulSpec(s, old *appsv1.StatefulSetSpec) field.ErrorList {
	path := field.NewPath("spec")
	var errs field.ErrorList
	switch s.PodManagementPolicy {
	case "":
		errs = append(errs, field.Required(path.Child("podManagementPolicy"), ""))
	case appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement:
	default:
		errs = append(errs, field.Invalid(path.Child("podManagementPolicy"), s.PodManagementPolicy, "must be 'OrderedReady' or 'Parallel'"))
	}
	errs = append(errs, statefulStrategy(&s.UpdateStrategy, path.Child("updateStrategy"))...)
	if p := s.PersistentVolumeClaimRetentionPolicy; p != nil {
		at := path.Child("persistentVolumeClaimRetentionPolicy")
		for _, part := range []struct {
			name  string
			value appsv1.PersistentVolumeClaimRetentionPolicyType
		}{{"whenDeleted", p.WhenDeleted}, {"whenScaled", p.WhenScaled}} {
			errs = append(errs, check.Supported(at.Child(part.name), part.value, appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
				appsv1.DeletePersistentVolumeClaimRetentionPolicyType)...)
		}
	}
	errs = append(errs, check.AtLeast(path.Child("replicas"), *s.Replicas, 0)...)
	errs = append(errs, check.AtLeast(path.Child("minReadySeconds"), s.MinReadySeconds, 0)...)
	if s.Ordinals != nil {
		errs = append(errs, check.AtLeast(path.Child("ordinals.start"), s.Ordinals.Start, 0)...)
	}
	var before *metav1.LabelSelector
	if old != nil {
		before = old.Selector
	} else if s.ServiceName != "" {
		errs = append(errs, check.Invalid(path.Child("serviceName"), s.ServiceName, apivalidation.NameIsDNS1035Label(s.ServiceName, false))...)
	}
	errs = append(errs, selected(s.Selector, before, &s.Template, path)...)
	return append(errs, check.AtLeastIf(path.Child("revisionHistoryLimit"), s.RevisionHistoryLimit, 0)...)
}

func statefulStrategy(s *appsv1.StatefulSetUpdateStrategy, path *field.Path) field.ErrorList {
	at := path.Child("rollingUpdate")
	switch s.Type {
	case "":
		return field.ErrorList{field.Required(path, "")}
	case appsv1.OnDeleteStatefulSetStrategyType:
		if s.RollingUpdate != nil {
			return field.ErrorList{field.Invalid(at, s.RollingUpdate, "only allowed for updateStrategy 'RollingUpdate'")}
		}
		return nil
	case appsv1.RollingUpdateStatefulSetStrategyType:
	default:
		return field.ErrorList{field.Invalid(path, s, "must be 'RollingUpdate' or 'OnDelete'")}
	}
	if s.RollingUpdate == nil {
		return nil
	}
	var errs field.ErrorList
	if p := s.RollingUpdate.Partition; p != nil {
		errs = append(errs, check.AtLeast(at.Child("partition"), *p, 0)...)
	}
	if m := s.RollingUpdate.MaxUnavailable; m != nil {
		errs = append(errs, check.Share(at.Child("maxUnavailable"), *m)...)
		if check.NoneOf(*m) {
			errs = append(errs, field.Invalid(at.Child("maxUnavailable"), *m, "cannot be 0"))
		}
		errs = append(errs, check.AtMostAll(at.Child("maxUnavailable"), *m)...)
	}
	return errs
}

// SetDaemonSetDefaults fills in what is missing.
func SetDaemonSetDefaults(o *appsv1.DaemonSet) {
	api.SetTemplateDefaults(&o.Spec.Template.Spec)
	s := &o.Spec.UpdateStrategy
	if check.Or(&s.Type, appsv1.RollingUpdateDaemonSetStrategyType); s.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		check.OrNew(&s.RollingUpdate, appsv1.RollingUpdateDaemonSet{})
		check.OrNew(&s.RollingUpdate.MaxUnavailable, intstr.FromInt32(1))
		check.OrNew(&s.RollingUpdate.MaxSurge, intstr.FromInt32(0))
	}
	check.OrNew(&o.Spec.RevisionHistoryLimit, historyLimit)
}

// ValidateDaemonSet holds a new set to its rules.
func ValidateDaemonSet(o *appsv1.DaemonSet) field.ErrorList {
	return append(check.Meta(o, true, check.SubdomainName), daemonSpec(&o.Spec, nil)...)
}

// ValidateDaemonSetUpdate holds a changed set to its rules.
func ValidateDaemonSetUpdate(o, old *appsv1.DaemonSet) field.ErrorList {
	errs := append(check.MetaUpdate(o, old), daemonSpec(&o.Spec, old.Spec.Selector)...)
	return append(errs, check.Immutable(field.NewPath("spec", "selector"), o.Spec.Selector, old.Spec.Selector)...)
}

func daemonSpec(s *appsv1.DaemonSetSpec, old *metav1.LabelSelector) field.ErrorList {
	path := field.NewPath("spec")
	at := path.Child("selector")
	errs := check.SelectorAsBefore(at, s.Selector, old)
	if s.Selector != nil && len(s.Selector.MatchLabels)+len(s.Selector.MatchExpressions) == 0 {
		errs = append(errs, field.Invalid(at, s.Selector, "empty selector is invalid for daemonset"))
	}
	if selector, err := metav1.LabelSelectorAsSelector(s.Selector); err == nil && !selector.Matches(labels.Set(s.Template.Labels)) {
		errs = append(errs, field.Invalid(path.Child("template", "metadata", "labels"), s.Template.Labels, "`selector` does not match template `labels`"))
	}
	errs = append(errs, api.ValidateTemplate(&s.Template, path.Child("template"))...)
	errs = append(errs, forever(&s.Template, path.Child("template", "spec"))...)
	errs = append(errs, check.AtLeast(path.Child("minReadySeconds"), s.MinReadySeconds, 0)...)
	errs = append(errs, check.AtLeastIf(path.Child("revisionHistoryLimit"), s.RevisionHistoryLimit, 0)...)
	u := &s.UpdateStrategy
	at = path.Child("updateStrategy")
	switch u.Type {
	case appsv1.OnDeleteDaemonSetStrategyType:
		return errs
	case appsv1.RollingUpdateDaemonSetStrategyType:
	default:
		return append(errs, check.Supported(at, u.Type, appsv1.RollingUpdateDaemonSetStrategyType, appsv1.OnDeleteDaemonSetStrategyType)...)
	}
	at = at.Child("rollingUpdate")
	if u.RollingUpdate == nil {
		return append(errs, field.Required(at, ""))
	}
	less, more := *u.RollingUpdate.MaxUnavailable, *u.RollingUpdate.MaxSurge
	errs = append(errs, check.Share(at.Child("maxUnavailable"), less)...)
	errs = append(errs, check.AtMostAll(at.Child("maxUnavailable"), less)...)
	errs = append(errs, check.Share(at.Child("maxSurge"), more)...)
	errs = append(errs, check.AtMostAll(at.Child("maxSurge"), more)...)
	switch {
	case !check.NoneOf(less) && !check.NoneOf(more):
		errs = append(errs, field.Invalid(at.Child("maxSurge"), more, "may not be set when maxUnavailable is non-zero"))
	case check.NoneOf(less) && check.NoneOf(more):
		errs = append(errs, field.Required(at.Child("maxUnavailable"), "cannot be 0 when maxSurge is 0"))
	}
	return errs
}
