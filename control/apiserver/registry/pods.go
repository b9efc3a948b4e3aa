package registry

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api/core"
)

// createPod is what a pod begins with, whatever its author says.
func createPod(_ context.Context, o runtime.Object) {
	p := o.(*corev1.Pod)
	p.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: core.QOSClass(p)}
	if len(p.Spec.SchedulingGates) > 0 {
		p.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulingGated,
			Message: "Scheduling is blocked due to non-empty scheduling gates",
		}}
	}
	if p.Spec.Affinity != nil {
		mergeAffinity(p)
	}
	for i := range p.Spec.TopologySpreadConstraints {
		c := &p.Spec.TopologySpreadConstraints[i]
		mergeKeys(p, c.LabelSelector, c.MatchLabelKeys, metav1.LabelSelectorOpIn)
	}
}

// mergeAffinity writes into selectors of other pods what they say of this pod's own labels: the scheduler reads the
// selectors alone.
func mergeAffinity(p *corev1.Pod) {
	var terms []*corev1.PodAffinityTerm
	add := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
		for i := range required {
			terms = append(terms, &required[i])
		}
		for i := range preferred {
			terms = append(terms, &preferred[i].PodAffinityTerm)
		}
	}
	if a := p.Spec.Affinity.PodAffinity; a != nil {
		add(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if a := p.Spec.Affinity.PodAntiAffinity; a != nil {
		add(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	for _, t := range terms {
		mergeKeys(p, t.LabelSelector, t.MatchLabelKeys, metav1.LabelSelectorOpIn)
		mergeKeys(p, t.LabelSelector, t.MismatchLabelKeys, metav1.LabelSelectorOpNotIn)
	}
}

func mergeKeys(p *corev1.Pod, s *metav1.LabelSelector, keys []string, op metav1.LabelSelectorOperator) {
	for _, k := range keys {
		if value, ok := p.Labels[k]; ok && s != nil {
			s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{Key: k, Operator: op, Values: []string{value}})
		}
	}
}

// podGrace decides how long a pod may take to end. One that runs nowhere, or has ended, is gone at once.
func podGrace(o runtime.Object, options *metav1.DeleteOptions) bool {
	if options == nil {
		return false
	}
	p := o.(*corev1.Pod)
	var seconds int64
	switch {
	case p.Spec.NodeName == "" || p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded:
	case options.GracePeriodSeconds != nil:
		seconds = *options.GracePeriodSeconds
	case p.Spec.TerminationGracePeriodSeconds != nil:
		seconds = *p.Spec.TerminationGracePeriodSeconds
	}
	if seconds < 0 {
		seconds = 1
	}
	options.GracePeriodSeconds = &seconds
	return true
}

// on makes rules of a kind's own type rules of any object.
func on[T any, P interface {
	*T
	runtime.Object
}](check func(o, old P) field.ErrorList) func(o, old runtime.Object) field.ErrorList {
	return func(o, old runtime.Object) field.ErrorList { return check(o.(P), old.(P)) }
}

func podParts() []part {
	return []part{
		{name: "status", writes: []string{"status"}, validate: on(core.ValidatePodStatus), prepare: func(o, old runtime.Object) {
			keepBut(o, old, "status")
			p, was := o.(*corev1.Pod), old.(*corev1.Pod)
			// The class is of the specification. It may not be known to who writes the rest.
			if p.Status.QOSClass == "" {
				p.Status.QOSClass = was.Status.QOSClass
			}
		}},
		{name: "ephemeralcontainers", writes: []string{"spec"}, validate: on(core.ValidateEphemeralContainers), prepare: func(o, old runtime.Object) {
			p := o.(*corev1.Pod)
			added := p.Spec.EphemeralContainers
			keepBut(o, old, "")
			p.Spec = *old.(*corev1.Pod).Spec.DeepCopy()
			p.Spec.EphemeralContainers = added
		}},
		{name: "resize", writes: []string{"spec"}, validate: on(core.ValidateResize), prepare: keepButResources},
	}
}

// keepButResources puts back all of a pod but the resources of its containers.
func keepButResources(o, old runtime.Object) {
	p := o.(*corev1.Pod)
	wanted := p.Spec
	keepBut(o, old, "")
	p.Spec = *old.(*corev1.Pod).Spec.DeepCopy()
	resize := func(now, of []corev1.Container) {
		for i := range now {
			for _, c := range of {
				if c.Name == now[i].Name {
					now[i].Resources, now[i].ResizePolicy = c.Resources, c.ResizePolicy
				}
			}
		}
	}
	resize(p.Spec.Containers, wanted.Containers)
	resize(p.Spec.InitContainers, wanted.InitContainers)
	if wanted.Resources != nil {
		p.Spec.Resources = wanted.Resources
	}
}
