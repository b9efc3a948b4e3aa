// Package cluster has the defaults and rules of small kinds of the whole cluster: leases, priority and runtime classes,
// events.
package cluster

import (
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api"
	"github.com/berth-node/berth/control/api/check"
)

// ValidateLease holds a new lease to its rules.
func ValidateLease(o *coordinationv1.Lease) field.ErrorList {
	return append(check.Meta(o, true, check.SubdomainName), leaseSpec(&o.Spec)...)
}

// ValidateLeaseUpdate holds a changed lease to its rules.
func ValidateLeaseUpdate(o, old *coordinationv1.Lease) field.ErrorList {
	return append(check.MetaUpdate(o, old), leaseSpec(&o.Spec)...)
}

func leaseSpec(s *coordinationv1.LeaseSpec) field.ErrorList {
	path := field.NewPath("spec")
	var errs field.ErrorList
	if d := s.LeaseDurationSeconds; d != nil && *d <= 0 {
		errs = append(errs, field.Invalid(path.Child("leaseDurationSeconds"), *d, "must be greater than 0"))
	}
	if t := s.LeaseTransitions; t != nil && *t < 0 {
		errs = append(errs, field.Invalid(path.Child("leaseTransitions"), *t, "must be greater than or equal to 0"))
	}
	if s.Strategy != nil {
		errs = append(errs, leaseStrategy(string(*s.Strategy), path.Child("strategy"))...)
	}
	if p := s.PreferredHolder; p != nil && *p != "" && (s.Strategy == nil || *s.Strategy == "") {
		errs = append(errs, field.Forbidden(path.Child("preferredHolder"), "may only be specified when `strategy` is defined"))
	}
	return errs
}

func leaseStrategy(name string, path *field.Path) field.ErrorList {
	if prefix, _, ok := strings.Cut(name, "/"); ok {
		_ = prefix
		return check.Qualified(path, name)
	}
	return check.Supported(path, coordinationv1.CoordinatedLeaseStrategy(name), coordinationv1.OldestEmulationVersion)
}

// ValidateRuntimeClass holds a new class to its rules.
func ValidateRuntimeClass(o *nodev1.RuntimeClass) field.ErrorList {
	return append(api.ValidateObject(o, false), scheduling(o.Scheduling)...)
}

// ValidateRuntimeClassUpdate holds a changed class to its rules: its handler stays.
func ValidateRuntimeClassUpdate(o, old *nodev1.RuntimeClass) field.ErrorList {
	errs := append(check.MetaUpdate(o, old), ValidateRuntimeClass(o)...)
	return append(errs, check.Immutable(field.NewPath("handler"), o.Handler, old.Handler)...)
}

func scheduling(s *nodev1.Scheduling) field.ErrorList {
	if s == nil {
		return nil
	}
	path := field.NewPath("scheduling")
	errs := metavalidation.ValidateLabels(s.NodeSelector, path.Child("nodeSelector"))
	errs = append(errs, api.ValidateTolerations(s.Tolerations, path.Child("tolerations"))...)
	for i, t := range s.Tolerations {
		for j := range i {
			if t.MatchToleration(&s.Tolerations[j]) {
				errs = append(errs, field.Duplicate(path.Child("tolerations").Index(i), t))
				break
			}
		}
	}
	return errs
}

const (
	highestUserPriority   = 1_000_000_000
	systemClusterPriority = 2 * highestUserPriority
	systemNodePriority    = systemClusterPriority + 1000
)

// SetPriorityClassDefaults fills in what is missing.
func SetPriorityClassDefaults(o *schedulingv1.PriorityClass) {
	check.OrNew(&o.PreemptionPolicy, corev1.PreemptLowerPriority)
}

// ValidatePriorityClass holds a new class to its rules: two, with their values, are the system's own.
func ValidatePriorityClass(o *schedulingv1.PriorityClass) field.ErrorList {
	errs := check.Meta(o, false, check.SubdomainName)
	switch {
	case strings.HasPrefix(o.Name, "system-"):
		known := o.Name == "system-node-critical" && o.Value == systemNodePriority || o.Name == "system-cluster-critical" && o.Value == systemClusterPriority
		if !known || o.GlobalDefault {
			errs = append(errs, field.Forbidden(field.NewPath("metadata", "name"), "priority class names with 'system-' prefix are reserved for system use only"))
		}
	case o.Value > highestUserPriority:
		errs = append(errs, field.Forbidden(field.NewPath("value"), "maximum allowed value of a user defined priority is 1000000000"))
	}
	return append(errs, preemption(o)...)
}

func preemption(o *schedulingv1.PriorityClass) field.ErrorList {
	path := field.NewPath("preemptionPolicy")
	if o.PreemptionPolicy == nil {
		return nil
	}
	return check.OneOf(path, *o.PreemptionPolicy, corev1.PreemptLowerPriority, corev1.PreemptNever)
}

// ValidatePriorityClassUpdate holds a changed class to its rules: pods have its value already.
func ValidatePriorityClassUpdate(o, old *schedulingv1.PriorityClass) field.ErrorList {
	errs := check.MetaUpdate(o, old)
	if o.Value != old.Value {
		errs = append(errs, field.Forbidden(field.NewPath("value"), "may not be changed in an update."))
	}
	return append(errs, check.Immutable(field.NewPath("preemptionPolicy"), o.PreemptionPolicy, old.PreemptionPolicy)...)
}

// ValidateEvent holds a new event of events.k8s.io to its rules, which are stricter than those of the core group.
func ValidateEvent(o *eventsv1.Event) field.ErrorList {
	errs := append(event(o), series(o)...)
	if o.EventTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("eventTime"), ""))
	}
	// What events of the core group say otherwise.
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"source", o.DeprecatedSource != corev1.EventSource{}},
		{"firstTimestamp", !o.DeprecatedFirstTimestamp.IsZero()},
		{"lastTimestamp", !o.DeprecatedLastTimestamp.IsZero()},
		{"count", o.DeprecatedCount != 0},
	} {
		if f.set {
			errs = append(errs, field.Invalid(field.NewPath(f.name), "", "needs to be unset"))
		}
	}
	return errs
}

func series(o *eventsv1.Event) field.ErrorList {
	var errs field.ErrorList
	if s := o.Series; s != nil {
		if s.Count < 2 {
			errs = append(errs, field.Invalid(field.NewPath("series.count"), "", "should be at least 2"))
		}
		if s.LastObservedTime.IsZero() {
			errs = append(errs, field.Required(field.NewPath("series.lastObservedTime"), ""))
		}
	}
	return errs
}

func event(o *eventsv1.Event) field.ErrorList {
	errs := check.Meta(o, true, check.SubdomainName)
	path := field.NewPath("involvedObject", "namespace")
	at := o.Regarding.Namespace
	if at == "" && o.Namespace != "default" && o.Namespace != "kube-system" || at != "" && at != o.Namespace {
		errs = append(errs, field.Invalid(path, at, "does not match event.namespace"))
	}
	errs = append(errs, Reported(o.ReportingController, o.ReportingInstance, o.Action, o.Reason, "reportingController", "reportingInstance")...)
	if o.Type != corev1.EventTypeNormal && o.Type != corev1.EventTypeWarning {
		errs = append(errs, field.Invalid(field.NewPath("type"), o.Type, "has invalid value"))
	}
	if len(o.Note) > 1024 {
		errs = append(errs, field.Invalid(field.NewPath("message"), "", "can have at most 1024 characters"))
	}
	return errs
}

// Reported holds what an event of the newer form must say to its rules.
func Reported(controller, instance, action, reason, controllerField, instanceField string) field.ErrorList {
	path := field.NewPath(controllerField)
	errs := check.Required(path, controller)
	errs = append(errs, check.Invalid(path, controller, validation.IsQualifiedName(controller))...)
	for _, f := range []struct {
		name, value string
	}{{instanceField, instance}, {"action", action}, {"reason", reason}} {
		errs = append(errs, check.Required(field.NewPath(f.name), f.value)...)
		if len(f.value) > 128 {
			errs = append(errs, field.Invalid(field.NewPath(f.name), "", "can have at most 128 characters"))
		}
	}
	return errs
}

// ValidateEventUpdate holds a changed event to its rules: but for its series, it stays.
func ValidateEventUpdate(o, old *eventsv1.Event) field.ErrorList {
	errs := append(check.MetaUpdate(o, old), event(o)...)
	errs = append(errs, series(o)...)
	for _, f := range []struct {
		name     string
		now, was any
	}{
		{"involvedObject", o.Regarding, old.Regarding},
		{"reason", o.Reason, old.Reason},
		{"message", o.Note, old.Note},
		{"source", o.DeprecatedSource, old.DeprecatedSource},
		{"firstTimestamp", o.DeprecatedFirstTimestamp, old.DeprecatedFirstTimestamp},
		{"lastTimestamp", o.DeprecatedLastTimestamp, old.DeprecatedLastTimestamp},
		{"count", o.DeprecatedCount, old.DeprecatedCount},
		{"type", o.Type, old.Type},
		{"eventTime", o.EventTime, old.EventTime},
		{"action", o.Action, old.Action},
		{"related", o.Related, old.Related},
		{"reportingController", o.ReportingController, old.ReportingController},
		{"reportingInstance", o.ReportingInstance, old.ReportingInstance},
	} {
		errs = append(errs, check.Immutable(field.NewPath(f.name), f.now, f.was)...)
	}
	return errs
}
