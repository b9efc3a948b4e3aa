package status

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Restarts says whether a container that has exited with that code is to run again: by the first of its rules that
// fits, else by its own policy, else by the pod's.
func Restarts(pod *corev1.Pod, c *corev1.Container, init bool, code int32) bool {
	if init && IsSidecar(c) {
		return true
	}
	if init && code == 0 {
		return false // it is done, whatever the policy
	}
	if rule(c, code) != nil {
		return true // each of the API's actions runs it again
	}
	policy := pod.Spec.RestartPolicy
	if c.RestartPolicy != nil {
		policy = corev1.RestartPolicy(*c.RestartPolicy)
	}
	switch policy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return code != 0
	}
	return init || policy == corev1.RestartPolicyAlways
}

// RestartsAll says whether a container that has exited with that code takes the whole pod back to its first init
// container.
func RestartsAll(c *corev1.Container, code int32) bool {
	r := rule(c, code)
	return r != nil && r.Action == corev1.ContainerRestartRuleActionRestartAllContainers
}

// rule is the first of a container's rules that fits the code, nil when none does.
func rule(c *corev1.Container, code int32) *corev1.ContainerRestartRule {
	for i := range c.RestartPolicyRules {
		r := &c.RestartPolicyRules[i]
		if r.ExitCodes == nil {
			continue
		}
		if slices.Contains(r.ExitCodes.Values, code) == (r.ExitCodes.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn) {
			return r
		}
	}
	return nil
}
