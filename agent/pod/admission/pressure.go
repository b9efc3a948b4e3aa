package admission

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/cgroups/kube"
)

// reasonEvicted is kubelet's, of pods that come while the node runs short.
const reasonEvicted = "Evicted"

// Spared says whether a pod is never evicted, and comes whatever the node is short of: those of which the priority
// says so, and on a node of a cluster those of which their origin does.
func Spared(pod *corev1.Pod, cluster bool) bool {
	return Priority(pod) >= systemCritical || cluster && desired.RulesOf(pod).Spared
}

// Pressure has pods wait while the node runs short of something, by kubelet's rules: all but the spared ones, and
// for want of memory alone only those that request none, and do not tolerate it.
func Pressure(holding func() []corev1.NodeConditionType, spared func(*corev1.Pod) bool) Check {
	return func(r *Request) *Verdict {
		now := holding()
		if len(now) == 0 || spared(r.Pod) {
			return nil
		}
		memory := !slices.ContainsFunc(now, func(t corev1.NodeConditionType) bool { return t != corev1.NodeMemoryPressure })
		if memory && (kube.QoS(r.Pod) != corev1.PodQOSBestEffort || toleratesMemoryPressure(r.Pod)) {
			return nil
		}
		return waits(reasonEvicted, fmt.Sprintf("The node had condition: %v. ", now))
	}
}

func toleratesMemoryPressure(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
		key := t.Key == corev1.TaintNodeMemoryPressure || t.Key == "" && t.Operator == corev1.TolerationOpExists
		value := t.Operator == corev1.TolerationOpExists || t.Value == ""
		return key && value && (t.Effect == "" || t.Effect == corev1.TaintEffectNoSchedule)
	})
}
