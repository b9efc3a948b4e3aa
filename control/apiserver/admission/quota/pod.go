package quota

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/admission"
	resourcehelper "k8s.io/component-helpers/resource"
)

const (
	requestsPrefix = corev1.DefaultResourceRequestsPrefix // requests.
	limitsPrefix   = "limits."
)

// computed are the resources that a quota may name with requests. and limits., or as they are.
func computed() []corev1.ResourceName {
	return []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage}
}

func podNames(name corev1.ResourceName) bool {
	plain := corev1.ResourceName(strings.TrimPrefix(strings.TrimPrefix(string(name), requestsPrefix), limitsPrefix))
	if name == corev1.ResourcePods || slices.Contains(computed(), plain) {
		return true
	}
	if strings.HasPrefix(string(plain), corev1.ResourceHugePagesPrefix) {
		return !strings.HasPrefix(string(name), limitsPrefix)
	}
	// Extended resources, which have a domain, cannot be had twice: their request is their limit.
	return strings.HasPrefix(string(name), requestsPrefix) && extended(plain)
}

// extended tells of resources of another domain than Kubernetes' own.
func extended(name corev1.ResourceName) bool {
	domain, _, has := strings.Cut(string(name), "/")
	return has && domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io") || strings.HasPrefix(string(name), "deviceclass.resource.kubernetes.io/")
}

func toPod(o runtime.Object) (*corev1.Pod, error) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("a %T is no pod", o)
	}
	return pod, nil
}

// podHandles is about new pods, those that change their scope, and those that are resized.
func podHandles(a admission.Attributes) bool {
	switch {
	case a.GetSubresource() == "resize":
		return a.GetOperation() == admission.Update
	case a.GetSubresource() != "":
		return false
	case a.GetOperation() == admission.Update:
		pod, err := toPod(a.GetObject())
		old, oldErr := toPod(a.GetOldObject())
		return err == nil && oldErr == nil && terminating(pod) != terminating(old)
	}
	return a.GetOperation() == admission.Create
}

func terminating(pod *corev1.Pod) bool {
	return pod.Spec.ActiveDeadlineSeconds != nil && *pod.Spec.ActiveDeadlineSeconds >= 0
}

// podConstraints wants each container to say what a quota of CPU or memory counts: else it would count nothing.
func podConstraints(required []corev1.ResourceName, o runtime.Object) error {
	pod, err := toPod(o)
	if err != nil {
		return err
	}
	if resourcehelper.IsPodLevelResourcesSet(pod) {
		return nil
	}
	missing := map[corev1.ResourceName][]string{}
	for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		has := resourceUsage(c.Resources.Requests, c.Resources.Limits)
		for _, name := range required {
			plain := corev1.ResourceName(strings.TrimPrefix(strings.TrimPrefix(string(name), requestsPrefix), limitsPrefix))
			if plain != corev1.ResourceCPU && plain != corev1.ResourceMemory {
				continue
			}
			if _, ok := has[name]; !ok && !slices.Contains(missing[name], c.Name) {
				missing[name] = append(missing[name], c.Name)
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	var texts []string
	for name, containers := range missing {
		slices.Sort(containers)
		texts = append(texts, fmt.Sprintf("%s for: %s", name, strings.Join(containers, ",")))
	}
	slices.Sort(texts)
	return fmt.Errorf("must specify %s", strings.Join(texts, "; "))
}

// podUsage is what a pod counts for. One that has ended, or has not ended when it should long have, only counts as an
// object.
func podUsage(o runtime.Object) (corev1.ResourceList, error) {
	pod, err := toPod(o)
	if err != nil {
		return nil, err
	}
	usage := corev1.ResourceList{"count/pods": *resource.NewQuantity(1, resource.DecimalSI)}
	if !counts(pod, time.Now()) {
		return usage, nil
	}
	options := resourcehelper.PodResourcesOptions{UseStatusResources: true}
	maps.Copy(usage, resourceUsage(resourcehelper.PodRequests(pod, options), resourcehelper.PodLimits(pod, options)))
	usage[corev1.ResourcePods] = *resource.NewQuantity(1, resource.DecimalSI)
	return usage, nil
}

// longestGrace is how many seconds of grace count: more than 292 years are a duration in the past.
const longestGrace = 100 * 365 * 24 * 60 * 60

func counts(pod *corev1.Pod, now time.Time) bool {
	if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return false
	}
	// A pod on a node that is gone must not hold the quota for ever.
	if pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil {
		grace := time.Duration(min(*pod.DeletionGracePeriodSeconds, longestGrace)) * time.Second
		return !now.After(pod.DeletionTimestamp.Add(grace))
	}
	return true
}

// resourceUsage is what requests and limits are called in a quota.
func resourceUsage(requests, limits corev1.ResourceList) corev1.ResourceList {
	usage := corev1.ResourceList{}
	for name, q := range requests {
		switch {
		case slices.Contains(computed(), name), strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix):
			usage[name], usage[requestsPrefix+name] = q, q
		case extended(name):
			usage[requestsPrefix+name] = q
		}
	}
	for name, q := range limits {
		if slices.Contains(computed(), name) {
			usage[limitsPrefix+name] = q
		}
	}
	return usage
}

// podScope tells whether a pod is within a scope.
func podScope(s selector, o runtime.Object) (bool, error) {
	pod, err := toPod(o)
	if err != nil {
		return false, err
	}
	switch s.ScopeName {
	case corev1.ResourceQuotaScopeTerminating:
		return terminating(pod), nil
	case corev1.ResourceQuotaScopeNotTerminating:
		return !terminating(pod), nil
	case corev1.ResourceQuotaScopeBestEffort:
		return bestEffort(pod), nil
	case corev1.ResourceQuotaScopeNotBestEffort:
		return !bestEffort(pod), nil
	case corev1.ResourceQuotaScopePriorityClass:
		// Without an operator it is any class.
		if s.Operator == "" && pod.Spec.PriorityClassName != "" {
			return true, nil
		}
		return selects(s, pod.Spec.PriorityClassName)
	case corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		return crossesNamespaces(pod.Spec.Affinity), nil
	}
	return false, nil
}

// bestEffort tells of pods that ask for no CPU and no memory.
func bestEffort(pod *corev1.Pod) bool {
	some := func(r corev1.ResourceRequirements) bool {
		for _, l := range []corev1.ResourceList{r.Requests, r.Limits} {
			for name, q := range l {
				if (name == corev1.ResourceCPU || name == corev1.ResourceMemory) && !q.IsZero() {
					return true
				}
			}
		}
		return false
	}
	if pod.Spec.Resources != nil && some(*pod.Spec.Resources) {
		return false
	}
	return !slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), func(c corev1.Container) bool { return some(c.Resources) })
}

// selects tells whether a name is what a scope's operator and values ask for.
func selects(s selector, name string) (bool, error) {
	operator := map[corev1.ScopeSelectorOperator]selection.Operator{
		corev1.ScopeSelectorOpIn: selection.In, corev1.ScopeSelectorOpNotIn: selection.NotIn,
		corev1.ScopeSelectorOpExists: selection.Exists, corev1.ScopeSelectorOpDoesNotExist: selection.DoesNotExist,
	}[s.Operator]
	requirement, err := labels.NewRequirement(string(s.ScopeName), operator, s.Values)
	if err != nil {
		return false, fmt.Errorf("read scope %s: %w", s.ScopeName, err)
	}
	set := labels.Set{}
	if name != "" {
		set[string(s.ScopeName)] = name
	}
	return requirement.Matches(set), nil
}

// crossesNamespaces tells of pods whose place depends on pods of other namespaces.
func crossesNamespaces(a *corev1.Affinity) bool {
	if a == nil {
		return false
	}
	var terms []corev1.PodAffinityTerm
	add := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
		terms = append(terms, required...)
		for _, p := range preferred {
			terms = append(terms, p.PodAffinityTerm)
		}
	}
	if a.PodAffinity != nil {
		add(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if a.PodAntiAffinity != nil {
		add(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	return slices.ContainsFunc(terms, func(t corev1.PodAffinityTerm) bool { return len(t.Namespaces) > 0 || t.NamespaceSelector != nil })
}
