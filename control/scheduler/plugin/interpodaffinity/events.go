package interpodaffinity

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/plugin"
	"github.com/berth-node/berth/control/selector"
)

// EventsToRegister has pods tried again when those that they want to be near come, those that are in the way go, or
// there are other domains.
func (p *interPod) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		plugin.OnAssigned(fwk.Add|fwk.UpdatePodLabel|fwk.Delete, p.afterPod),
		// Other pods' terms may not mean it any more.
		plugin.OnItself(fwk.UpdatePodLabel, plugin.WhenPodChanges(func(was, is *corev1.Pod) bool {
			return !maps.Equal(was.Labels, is.Labels)
		})),
		plugin.OnNode(fwk.Add|fwk.UpdateNodeLabel, afterNode),
	}, nil
}

func (p *interPod) afterPod(_ klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
	was, is, err := plugin.Objects[*corev1.Pod](before, after)
	if err != nil {
		return fwk.Queue, err
	}
	wantsNear, wantsAway := fwk.GetPodAffinityTerms(pod.Spec.Affinity), fwk.GetPodAntiAffinityTerms(pod.Spec.Affinity)
	matched := func(o *corev1.Pod) (near, away bool) {
		if o == nil {
			return false, false
		}
		near = len(wantsNear) > 0
		for i := range wantsNear {
			near = near && p.means(&wantsNear[i], pod, o)
		}
		return near, p.meansAny(wantsAway, pod, o)
	}
	wasNear, wasAway := matched(was)
	isNear, isAway := matched(is)
	switch {
	case isNear && !wasNear: // one to be near
		return fwk.Queue, nil
	case wasAway && !isAway: // one less in the way
		return fwk.Queue, nil
	case is == nil && was != nil && p.meansAny(fwk.GetPodAntiAffinityTerms(was.Spec.Affinity), was, pod):
		// There is one less that minded it.
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}

// means says whether a term of a pod means another one. The term is not read first: all pods that wait may be asked
// about each that comes or goes.
func (p *interPod) means(t *corev1.PodAffinityTerm, owner, other *corev1.Pod) bool {
	named := slices.Contains(t.Namespaces, other.Namespace) ||
		len(t.Namespaces) == 0 && t.NamespaceSelector == nil && owner.Namespace == other.Namespace
	if !named && (t.NamespaceSelector == nil || !selector.Selects(t.NamespaceSelector, p.labelsOf(other.Namespace))) {
		return false
	}
	return selector.Selects(t.LabelSelector, other.Labels)
}

func (p *interPod) meansAny(list []corev1.PodAffinityTerm, owner, other *corev1.Pod) bool {
	for i := range list {
		if p.means(&list[i], owner, other) {
			return true
		}
	}
	return false
}

// afterNode queues a pod when a node is in other domains than before. Which topologies those that mind the pod speak
// of, it does not know.
func afterNode(_ klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
	was, is, err := plugin.Objects[*corev1.Node](before, after)
	if err != nil {
		return fwk.Queue, err
	}
	if is == nil || was != nil && maps.Equal(was.Labels, is.Labels) {
		return fwk.QueueSkip, nil
	}
	near := fwk.GetPodAffinityTerms(pod.Spec.Affinity)
	for i := range near {
		if _, ok := is.Labels[near[i].TopologyKey]; !ok {
			return fwk.QueueSkip, nil // it takes no pod that wants to be near others there
		}
	}
	return fwk.Queue, nil
}
