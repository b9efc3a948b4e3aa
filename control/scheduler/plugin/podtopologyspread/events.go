package podtopologyspread

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/plugin"
	"github.com/berth-node/berth/control/selector"
)

// EventsToRegister has pods tried again when pods that count come or go, or domains do.
func (s *spread) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		plugin.OnAssigned(fwk.Add|fwk.UpdatePodLabel|fwk.Delete, s.afterPod),
		plugin.OnItself(fwk.UpdatePodLabel|fwk.UpdatePodToleration, s.afterItself),
		// A domain less may have been the one with the fewest pods.
		plugin.OnNode(fwk.Add|fwk.Delete|fwk.UpdateNodeLabel|fwk.UpdateNodeTaint, s.afterNode),
	}, nil
}

func hint(queue bool) (fwk.QueueingHint, error) {
	if queue {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}

// afterPod queues a pod when another counts that did not, or does not any more.
func (s *spread) afterPod(_ klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
	was, is, err := plugin.Objects[*corev1.Pod](before, after)
	if err != nil {
		return fwk.Queue, err
	}
	here := func(o *corev1.Pod) bool { return o != nil && o.Namespace == pod.Namespace }
	if !here(was) && !here(is) {
		return fwk.QueueSkip, nil
	}
	if own := pod.Spec.TopologySpreadConstraints; len(own) > 0 {
		return hint(slices.ContainsFunc(own, func(c corev1.TopologySpreadConstraint) bool {
			return c.WhenUnsatisfiable == corev1.DoNotSchedule && (here(was) && means(&c, pod, was)) != (here(is) && means(&c, pod, is))
		}))
	}
	constraints, err := s.constraints(pod, corev1.DoNotSchedule)
	if err != nil {
		return fwk.Queue, err
	}
	counts := func(c *constraint, o *corev1.Pod) bool { return here(o) && c.selector.Matches(labels.Set(o.Labels)) }
	for i := range constraints {
		if counts(&constraints[i], was) != counts(&constraints[i], is) {
			return fwk.Queue, nil
		}
	}
	return fwk.QueueSkip, nil
}

// means says whether a pod's constraint means another one. It is not read first: all pods that wait may be asked about
// each that comes or goes.
func means(c *corev1.TopologySpreadConstraint, owner, other *corev1.Pod) bool {
	if !selector.Selects(c.LabelSelector, other.Labels) {
		return false
	}
	return !slices.ContainsFunc(c.MatchLabelKeys, func(key string) bool {
		value, ok := owner.Labels[key]
		has, had := other.Labels[key]
		return ok && (!had || has != value)
	})
}

// afterItself queues a pod that may count another way, or tolerates other nodes.
func (s *spread) afterItself(_ klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
	was, is, err := plugin.Objects[*corev1.Pod](before, after)
	if err != nil {
		return fwk.Queue, err
	}
	if was == nil || is == nil || is.UID != pod.UID {
		return fwk.QueueSkip, nil
	}
	constraints, err := s.constraints(is, corev1.DoNotSchedule)
	if err != nil {
		return fwk.Queue, err
	}
	tolerates := !equality.Semantic.DeepEqual(was.Spec.Tolerations, is.Spec.Tolerations)
	for i := range constraints {
		c := &constraints[i]
		if tolerates && c.taints || c.selector.Matches(labels.Set(was.Labels)) != c.self {
			return fwk.Queue, nil
		}
	}
	// Labels that a constraint takes the pod's own values of make another selector.
	keys := false
	for i := range is.Spec.TopologySpreadConstraints {
		for _, k := range is.Spec.TopologySpreadConstraints[i].MatchLabelKeys {
			keys = keys || was.Labels[k] != is.Labels[k]
		}
	}
	return hint(keys)
}

// afterNode queues a pod when a node comes to, or leaves, what it is spread over.
func (s *spread) afterNode(_ klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
	was, is, err := plugin.Objects[*corev1.Node](before, after)
	if err != nil {
		return fwk.Queue, err
	}
	constraints, err := s.constraints(pod, corev1.DoNotSchedule)
	if err != nil {
		return fwk.Queue, err
	}
	in := func(n *corev1.Node) bool { return n != nil && inAll(n.Labels, constraints) }
	if in(was) != in(is) {
		return fwk.Queue, nil
	}
	if !in(is) {
		return fwk.QueueSkip, nil
	}
	for i := range constraints {
		if key := constraints[i].topology; was.Labels[key] != is.Labels[key] {
			return fwk.Queue, nil
		}
	}
	// Which nodes count may depend on their other labels and on their taints.
	return hint(!equality.Semantic.DeepEqual(was.Spec.Taints, is.Spec.Taints) || !equality.Semantic.DeepEqual(was.Labels, is.Labels))
}
