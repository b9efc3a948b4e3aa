package daemonset

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-node/berth/control/controller/owned"
)

// bound is a pod of a set as it would be on a node, which decides whether it may be there.
func bound(d *appsv1.DaemonSet) *corev1.Pod {
	p := owned.FromTemplate(&d.Spec.Template, d, kind)
	tolerate(&p.Spec)
	return p
}

// eligible says whether a node is to have a pod of a set, and whether a pod that it has may stay there. A taint that
// only keeps new pods away does not end one that runs.
func eligible(p *corev1.Pod, n *corev1.Node) (run, stay bool) {
	if p.Spec.NodeName != "" && p.Spec.NodeName != n.Name {
		return false, false
	}
	if ok, err := nodeaffinity.GetRequiredNodeAffinity(p).Match(n); err != nil || !ok {
		return false, false
	}
	run, stay = true, true
	for _, t := range n.Spec.Taints {
		if t.Effect == corev1.TaintEffectPreferNoSchedule || tolerated(&t, p.Spec.Tolerations) {
			continue
		}
		run = false
		if t.Effect == corev1.TaintEffectNoExecute {
			stay = false
		}
	}
	return run, stay
}

func tolerated(t *corev1.Taint, all []corev1.Toleration) bool {
	return slices.ContainsFunc(all, func(o corev1.Toleration) bool { return o.ToleratesTaint(klog.Background(), t, false) })
}

// tolerate has a pod of a set stay, and come, where others do not: it is part of what makes the node ready.
func tolerate(s *corev1.PodSpec) {
	add := func(key string, effect corev1.TaintEffect) {
		t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: effect}
		if !slices.ContainsFunc(s.Tolerations, func(o corev1.Toleration) bool { return o.MatchToleration(&t) }) {
			s.Tolerations = append(s.Tolerations, t)
		}
	}
	add(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute)
	add(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute)
	add(corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule)
	add(corev1.TaintNodeMemoryPressure, corev1.TaintEffectNoSchedule)
	add(corev1.TaintNodePIDPressure, corev1.TaintEffectNoSchedule)
	add(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)
	if s.HostNetwork {
		add(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule)
	}
}

// pin has the scheduler bind a pod to one node only: it is the scheduler that knows whether there is room.
func pin(s *corev1.PodSpec, node string) {
	only := []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}
	if s.Affinity == nil {
		s.Affinity = &corev1.Affinity{}
	}
	if s.Affinity.NodeAffinity == nil {
		s.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	required := &s.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if *required == nil || len((*required).NodeSelectorTerms) == 0 {
		*required = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: only}}}
		return
	}
	// The node was chosen by the terms there are, and any of them would do: each is narrowed to it.
	for i := range (*required).NodeSelectorTerms {
		(*required).NodeSelectorTerms[i].MatchFields = slices.Clone(only)
	}
}

// nodeOf is the node that a pod is on, or is pinned to.
func nodeOf(p *corev1.Pod) string {
	if p.Spec.NodeName != "" || p.Spec.Affinity == nil || p.Spec.Affinity.NodeAffinity == nil {
		return p.Spec.NodeName
	}
	required := p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if required == nil {
		return ""
	}
	for _, term := range required.NodeSelectorTerms {
		for _, f := range term.MatchFields {
			if f.Key == metav1.ObjectNameField && f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1 {
				return f.Values[0]
			}
		}
	}
	return ""
}
