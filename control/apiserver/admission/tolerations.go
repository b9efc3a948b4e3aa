package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
)

// tolerated is how long, in seconds, pods stay on a node that is not ready or cannot be reached.
const tolerated = 300

// newDefaultTolerations has pods stay for a while on a node that is not ready or cannot be reached, unless they say how
// long.
func newDefaultTolerations(given) (checks, error) {
	return checks{
		operations: onWrite(), resources: []string{"pods"},
		admit: on(func(_ context.Context, _ admission.Attributes, pod *corev1.Pod) error {
			for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
				if !tolerates(pod.Spec.Tolerations, key) {
					seconds := int64(tolerated)
					pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{
						Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds,
					})
				}
			}
			return nil
		}),
	}, nil
}

func tolerates(all []corev1.Toleration, key string) bool {
	for _, t := range all {
		if (t.Key == key || t.Key == "") && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == "") {
			return true
		}
	}
	return false
}
