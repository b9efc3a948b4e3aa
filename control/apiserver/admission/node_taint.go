package admission

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
)

// newTaintNodes lets no pod come to a node before its conditions are known: between the making of a node and the first
// look of the controller that taints by conditions there is nothing else that would keep them away.
func newTaintNodes(given) (checks, error) {
	return checks{
		operations: onCreate(), resources: []string{"nodes"},
		admit: on(func(_ context.Context, _ admission.Attributes, node *corev1.Node) error {
			taint := corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}
			if !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&taint) }) {
				node.Spec.Taints = append(node.Spec.Taints, taint)
			}
			return nil
		}),
	}, nil
}
