// Package autoscaling has the defaults and rules of autoscalers, in both versions that are served.
package autoscaling

import (
	v1 "k8s.io/api/autoscaling/v1"
	v2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api/check"
)

const (
	utilization  = 80   // percent
	maxPeriod    = 1800 // seconds
	maxWindow    = 3600 // seconds
	upPods       = 4
	doubled      = 100 // percent
	policyPeriod = 15  // seconds
)

// SetDefaults fills in what is missing.
func SetDefaults(o *v2.HorizontalPodAutoscaler) {
	check.OrNew(&o.Spec.MinReplicas, 1)
	if len(o.Spec.Metrics) == 0 {
		percent := int32(utilization)
		o.Spec.Metrics = []v2.MetricSpec{{Type: v2.ResourceMetricSourceType, Resource: &v2.ResourceMetricSource{
			Name: corev1.ResourceCPU, Target: v2.MetricTarget{Type: v2.UtilizationMetricType, AverageUtilization: &percent},
		}}}
	}
	b := o.Spec.Behavior
	if b == nil {
		return
	}
	check.OrNew(&b.ScaleUp, v2.HPAScalingRules{})
	check.OrNew(&b.ScaleUp.StabilizationWindowSeconds, 0)
	setRules(b.ScaleUp, []v2.HPAScalingPolicy{
		{Type: v2.PodsScalingPolicy, Value: upPods, PeriodSeconds: policyPeriod},
		{Type: v2.PercentScalingPolicy, Value: doubled, PeriodSeconds: policyPeriod},
	})
	check.OrNew(&b.ScaleDown, v2.HPAScalingRules{})
	setRules(b.ScaleDown, []v2.HPAScalingPolicy{{Type: v2.PercentScalingPolicy, Value: doubled, PeriodSeconds: policyPeriod}})
}

func setRules(r *v2.HPAScalingRules, policies []v2.HPAScalingPolicy) {
	check.OrNew(&r.SelectPolicy, v2.MaxChangePolicySelect)
	if r.Policies == nil {
		r.Policies = policies
	}
}

// Validate holds a new autoscaler to its rules.
func Validate(o *v2.HorizontalPodAutoscaler) field.ErrorList {
	return append(check.Meta(o, true, check.SubdomainName), spec(&o.Spec)...)
}

// ValidateUpdate holds a changed autoscaler to its rules.
func ValidateUpdate(o, old *v2.HorizontalPodAutoscaler) field.ErrorList {
	return append(check.MetaUpdate(o, old), spec(&o.Spec)...)
}

func spec(s *v2.HorizontalPodAutoscalerSpec) field.ErrorList {
	path := field.NewPath("spec")
	var errs field.ErrorList
	if m := s.MinReplicas; m != nil && *m < 1 {
		errs = append(errs, field.Invalid(path.Child("minReplicas"), *m, "must be greater than or equal to 1"))
	}
	if s.MinReplicas != nil && *s.MinReplicas == 0 && !hasObjectMetric(s.Metrics) {
		errs = append(errs, field.Forbidden(path.Child("metrics"), "must specify at least one Object or External metric to support scaling to zero replicas"))
	}
	switch {
	case s.MaxReplicas == 0:
		errs = append(errs, field.Required(path.Child("maxReplicas"), "must be set and greater than 0"))
	case s.MaxReplicas < 0:
		errs = append(errs, field.Invalid(path.Child("maxReplicas"), s.MaxReplicas, "must be greater than 0"))
	}
	if s.MinReplicas != nil && s.MaxReplicas < *s.MinReplicas {
		errs = append(errs, field.Invalid(path.Child("maxReplicas"), s.MaxReplicas, "must be greater than or equal to `minReplicas`"))
	}
	errs = append(errs, target(s.ScaleTargetRef.Kind, s.ScaleTargetRef.Name, path.Child("scaleTargetRef"))...)
	errs = append(errs, hasGroup(s.ScaleTargetRef, path.Child("scaleTargetRef", "apiVersion"))...)
	for i := range s.Metrics {
		errs = append(errs, metric(&s.Metrics[i], path.Child("metrics").Index(i))...)
	}
	if b := s.Behavior; b != nil {
		errs = append(errs, rules(b.ScaleUp, path.Child("behavior", "scaleUp"))...)
		errs = append(errs, rules(b.ScaleDown, path.Child("behavior", "scaleDown"))...)
	}
	return errs
}

func hasObjectMetric(all []v2.MetricSpec) bool {
	for _, m := range all {
		if m.Type == v2.ObjectMetricSourceType || m.Type == v2.ExternalMetricSourceType {
			return true
		}
	}
	return false
}

// hasGroup wants the group of what is scaled: only replication controllers have none.
func hasGroup(r v2.CrossVersionObjectReference, path *field.Path) field.ErrorList {
	gv, err := schema.ParseGroupVersion(r.APIVersion)
	if err != nil {
		return field.ErrorList{field.Invalid(path, r.APIVersion, err.Error())}
	}
	if gv.Group != "" || r.Kind == "ReplicationController" && gv.Version == "v1" {
		return nil
	}
	return field.ErrorList{field.Invalid(path, r.APIVersion, "apiVersion must specify API group")}
}

func target(kind, name string, path *field.Path) field.ErrorList {
	return append(segment(path.Child("kind"), kind), segment(path.Child("name"), name)...)
}

func segment(path *field.Path, name string) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return check.Invalid(path, name, content.IsPathSegmentName(name))
}

func rules(r *v2.HPAScalingRules, path *field.Path) field.ErrorList {
	if r == nil {
		return nil
	}
	var errs field.ErrorList
	at := path.Child("stabilizationWindowSeconds")
	if w := r.StabilizationWindowSeconds; w != nil && (*w < 0 || *w > maxWindow) {
		errs = append(errs, field.Invalid(at, *w, "must be between 0 and 3600"))
	}
	errs = append(errs, check.SupportedIf(path.Child("selectPolicy"), r.SelectPolicy, v2.MaxChangePolicySelect, v2.MinChangePolicySelect, v2.DisabledPolicySelect)...)
	at = path.Child("policies")
	if len(r.Policies) == 0 {
		errs = append(errs, field.Required(at, "must specify at least one Policy"))
	}
	for i, p := range r.Policies {
		errs = append(errs, check.Supported(at.Index(i).Child("type"), p.Type, v2.PodsScalingPolicy, v2.PercentScalingPolicy)...)
		if p.Value <= 0 {
			errs = append(errs, field.Invalid(at.Index(i).Child("value"), p.Value, "must be greater than zero"))
		}
		if p.PeriodSeconds <= 0 || p.PeriodSeconds > maxPeriod {
			errs = append(errs, field.Invalid(at.Index(i).Child("periodSeconds"), p.PeriodSeconds, "must be greater than zero and at most 1800"))
		}
	}
	if r.Tolerance != nil && r.Tolerance.Sign() < 0 {
		errs = append(errs, field.Invalid(path.Child("tolerance"), r.Tolerance.String(), "must be greater than or equal to 0"))
	}
	return errs
}

func metric(m *v2.MetricSpec, path *field.Path) field.ErrorList {
	types := []v2.MetricSourceType{
		v2.ObjectMetricSourceType, v2.PodsMetricSourceType, v2.ResourceMetricSourceType, v2.ExternalMetricSourceType, v2.ContainerResourceMetricSourceType,
	}
	errs := check.Supported(path.Child("type"), m.Type, types...)
	if m.Type == "" {
		errs = append(errs, field.Required(path.Child("type"), "must specify a metric source type"))
	}
	set := sets.New[string]()
	part := func(has bool, name string, bad func() field.ErrorList) {
		if !has {
			return
		}
		set.Insert(name)
		if set.Len() == 1 {
			errs = append(errs, bad()...)
		}
	}
	part(m.Object != nil, "object", func() field.ErrorList { return object(m.Object, path.Child("object")) })
	part(m.External != nil, "external", func() field.ErrorList { return external(m.External, path.Child("external")) })
	part(m.Pods != nil, "pods", func() field.ErrorList { return pods(m.Pods, path.Child("pods")) })
	part(m.Resource != nil, "resource", func() field.ErrorList {
		at := path.Child("resource")
		return append(check.Required(at.Child("name"), m.Resource.Name), resourceTarget(&m.Resource.Target, at.Child("target"))...)
	})
	part(m.ContainerResource != nil, "containerResource", func() field.ErrorList {
		c, at := m.ContainerResource, path.Child("containerResource")
		errs := append(check.Required(at.Child("name"), c.Name), check.Required(at.Child("container"), c.Container)...)
		return append(errs, resourceTarget(&c.Target, at.Child("target"))...)
	})
	names := map[v2.MetricSourceType]string{
		v2.ObjectMetricSourceType: "object", v2.PodsMetricSourceType: "pods", v2.ResourceMetricSourceType: "resource",
		v2.ExternalMetricSourceType: "external", v2.ContainerResourceMetricSourceType: "containerResource",
	}
	want := names[m.Type]
	if want != "" && !set.Has(want) {
		errs = append(errs, field.Required(path.Child(want), "must populate information for the given metric source"))
	}
	if set.Len() > 1 {
		for _, name := range sets.List(set) {
			if name != want {
				errs = append(errs, field.Forbidden(path.Child(name), "must populate the given metric source only"))
			}
		}
	}
	return errs
}

func identifier(i v2.MetricIdentifier, path *field.Path) field.ErrorList {
	return segment(path.Child("name"), i.Name)
}

func object(o *v2.ObjectMetricSource, path *field.Path) field.ErrorList {
	errs := target(o.DescribedObject.Kind, o.DescribedObject.Name, path.Child("describedObject"))
	errs = append(errs, identifier(o.Metric, path.Child("metric"))...)
	errs = append(errs, metricTarget(&o.Target, path.Child("target"))...)
	if o.Target.Value == nil && o.Target.AverageValue == nil {
		errs = append(errs, field.Required(path.Child("target").Child("averageValue"), "must set either a target value or averageValue"))
	}
	return errs
}

func external(e *v2.ExternalMetricSource, path *field.Path) field.ErrorList {
	errs := identifier(e.Metric, path.Child("metric"))
	errs = append(errs, metricTarget(&e.Target, path.Child("target"))...)
	at := path.Child("target")
	if e.Target.Value == nil && e.Target.AverageValue == nil {
		errs = append(errs, field.Required(at.Child("averageValue"), "must set either a target value for metric or a per-pod target"))
	}
	if e.Target.Value != nil && e.Target.AverageValue != nil {
		errs = append(errs, field.Forbidden(at.Child("value"), "may not set both a target value for metric and a per-pod target"))
	}
	return errs
}

func pods(p *v2.PodsMetricSource, path *field.Path) field.ErrorList {
	errs := identifier(p.Metric, path.Child("metric"))
	errs = append(errs, metricTarget(&p.Target, path.Child("target"))...)
	if p.Target.AverageValue == nil || p.Target.AverageValue.Sign() != 1 {
		errs = append(errs, field.Required(path.Child("target").Child("averageValue"), "must specify a positive target averageValue"))
	}
	return errs
}

func resourceTarget(t *v2.MetricTarget, path *field.Path) field.ErrorList {
	errs := metricTarget(t, path)
	if t.AverageUtilization == nil && t.AverageValue == nil {
		errs = append(errs, field.Required(path.Child("averageUtilization"), "must set either a target raw value or a target utilization"))
	}
	if t.AverageUtilization != nil && t.AverageValue != nil {
		errs = append(errs, field.Forbidden(path.Child("averageValue"), "may not set both a target raw value and a target utilization"))
	}
	return errs
}

func metricTarget(t *v2.MetricTarget, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if t.Type == "" {
		errs = append(errs, field.Required(path.Child("type"), "must specify a metric target type"))
	}
	if t.Type != v2.UtilizationMetricType && t.Type != v2.ValueMetricType && t.Type != v2.AverageValueMetricType {
		errs = append(errs, field.Invalid(path.Child("type"), t.Type, "must be either Utilization, Value, or AverageValue"))
	}
	if t.Value != nil && t.Value.Sign() != 1 {
		errs = append(errs, field.Invalid(path.Child("value"), t.Value, "must be positive"))
	}
	if t.AverageValue != nil && t.AverageValue.Sign() != 1 {
		errs = append(errs, field.Invalid(path.Child("averageValue"), t.AverageValue, "must be positive"))
	}
	if t.AverageUtilization != nil && *t.AverageUtilization < 1 {
		errs = append(errs, field.Invalid(path.Child("averageUtilization"), t.AverageUtilization, "must be greater than 0"))
	}
	return errs
}

// SetV1Defaults fills in what is missing of the older version.
func SetV1Defaults(o *v1.HorizontalPodAutoscaler) { check.OrNew(&o.Spec.MinReplicas, 1) }

// ValidateV1 holds a new autoscaler of the older version to the rules of what it says.
func ValidateV1(o *v1.HorizontalPodAutoscaler) field.ErrorList { return Validate(fromV1(o)) }

// ValidateV1Update holds a changed autoscaler of the older version to its rules.
func ValidateV1Update(o, old *v1.HorizontalPodAutoscaler) field.ErrorList {
	return ValidateUpdate(fromV1(o), fromV1(old))
}

// fromV1 is the autoscaler without what the older version carries in annotations, which a hub version reads.
func fromV1(o *v1.HorizontalPodAutoscaler) *v2.HorizontalPodAutoscaler {
	n := &v2.HorizontalPodAutoscaler{ObjectMeta: o.ObjectMeta, Spec: v2.HorizontalPodAutoscalerSpec{
		ScaleTargetRef: v2.CrossVersionObjectReference(o.Spec.ScaleTargetRef), MinReplicas: o.Spec.MinReplicas, MaxReplicas: o.Spec.MaxReplicas,
	}}
	if t := o.Spec.TargetCPUUtilizationPercentage; t != nil {
		n.Spec.Metrics = []v2.MetricSpec{{Type: v2.ResourceMetricSourceType, Resource: &v2.ResourceMetricSource{
			Name: corev1.ResourceCPU, Target: v2.MetricTarget{Type: v2.UtilizationMetricType, AverageUtilization: t},
		}}}
	}
	return n
}
