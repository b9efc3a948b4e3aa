package admission

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	schedulinglisters "k8s.io/client-go/listers/scheduling/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-node/berth/control/apiserver/bootstrap"
)

// newPriority gives pods the number that their priority class stands for, so that nobody names a number of their own,
// and keeps one class at most the default.
func newPriority(g given) (checks, error) {
	classes := g.informers.Scheduling().V1().PriorityClasses()
	p := priority{classes.Lister()}
	return checks{
		operations: onWrite(), resources: []string{"pods", "podgroups.scheduling.k8s.io", "priorityclasses.scheduling.k8s.io"},
		synced: []cache.InformerSynced{classes.Informer().HasSynced},
		admit: func(_ context.Context, a admission.Attributes) error {
			if group, ok := a.GetObject().(*schedulingv1beta1.PodGroup); ok {
				return p.group(a, group)
			}
			pod, ok := a.GetObject().(*corev1.Pod)
			switch {
			case a.GetResource().Resource != "pods":
				return nil
			case !ok:
				return wrongType(a, a.GetObject())
			case a.GetOperation() == admission.Create:
				return p.create(a, pod)
			}
			old, ok := a.GetOldObject().(*corev1.Pod)
			if !ok {
				return wrongType(a, a.GetOldObject())
			}
			// A client that does not know of the fields must not take them away.
			if pod.Spec.Priority == nil {
				pod.Spec.Priority = old.Spec.Priority
			}
			if pod.Spec.PreemptionPolicy == nil {
				pod.Spec.PreemptionPolicy = old.Spec.PreemptionPolicy
			}
			return nil
		},
		validate: func(_ context.Context, a admission.Attributes) error {
			if a.GetResource().Resource != "priorityclasses" {
				return nil
			}
			class, ok := a.GetObject().(*schedulingv1.PriorityClass)
			if !ok {
				return wrongType(a, a.GetObject())
			}
			return p.oneDefault(a, class)
		},
	}, nil
}

type priority struct {
	classes schedulinglisters.PriorityClassLister
}

func (p priority) create(a admission.Attributes, pod *corev1.Pod) error {
	class, err := p.classOf(pod.Spec.PriorityClassName)
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	value, policy := int32(0), corev1.PreemptLowerPriority
	if class != nil {
		value, pod.Spec.PriorityClassName = class.Value, class.Name
		if class.PreemptionPolicy != nil {
			policy = *class.PreemptionPolicy
		}
	}
	if have := pod.Spec.Priority; have != nil && *have != value {
		return forbid(a, "the integer value of priority (%d) must not be provided in pod spec; priority admission controller computed %d from the given PriorityClass name",
			*have, value)
	}
	if have := pod.Spec.PreemptionPolicy; have != nil && *have != policy {
		return forbid(a, "the string value of PreemptionPolicy (%s) must not be provided in pod spec; priority admission controller computed %s from the given PriorityClass name",
			*have, policy)
	}
	pod.Spec.Priority, pod.Spec.PreemptionPolicy = &value, &policy
	return nil
}

// group gives a group of pods its priority, as pods have theirs.
func (p priority) group(a admission.Attributes, group *schedulingv1beta1.PodGroup) error {
	if a.GetOperation() != admission.Create {
		return nil
	}
	class, err := p.classOf(group.Spec.PriorityClassName)
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	value := int32(0)
	if class != nil {
		value, group.Spec.PriorityClassName = class.Value, class.Name
	}
	if have := group.Spec.Priority; have != nil && *have != value {
		return forbid(a, "the integer value of priority (%d) must not be provided in pod group spec; priority admission controller computed %d from the given PriorityClass name",
			*have, value)
	}
	group.Spec.Priority = &value
	return nil
}

// classOf is the class of a name, or without one the default: of several, as two servers may make at the same time,
// the one with the least value.
func (p priority) classOf(name string) (*schedulingv1.PriorityClass, error) {
	if name != "" {
		class, err := p.classes.Get(name)
		if err == nil {
			return class, nil
		}
		if !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("find priority class %s: %w", name, err)
		}
		// Pods of the system come before the classes of the system are made.
		for _, class := range bootstrap.SystemPriorityClasses() {
			if class.Name == name {
				return class, nil
			}
		}
		return nil, fmt.Errorf("no PriorityClass with name %v was found", name)
	}
	all, err := p.classes.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list priority classes: %w", err)
	}
	var least *schedulingv1.PriorityClass
	for _, c := range all {
		if c.GlobalDefault && (least == nil || c.Value < least.Value) {
			least = c
		}
	}
	return least, nil
}

func (p priority) oneDefault(a admission.Attributes, class *schedulingv1.PriorityClass) error {
	if !class.GlobalDefault {
		return nil
	}
	all, err := p.classes.List(labels.Everything())
	if err != nil {
		return admission.NewForbidden(a, fmt.Errorf("list priority classes: %w", err))
	}
	for _, c := range all {
		if c.GlobalDefault && c.Name != class.Name {
			return forbid(a, "PriorityClass %v is already marked as default. Only one default can exist", c.Name)
		}
	}
	return nil
}
