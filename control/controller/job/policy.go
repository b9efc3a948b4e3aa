package job

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// verdict is what the rules of a job say of a pod that failed. Without a rule that matches it counts.
type verdict struct {
	action  batchv1.PodFailurePolicyAction
	message string
}

func judge(policy *batchv1.PodFailurePolicy, p *corev1.Pod) verdict {
	v := verdict{action: batchv1.PodFailurePolicyActionCount}
	if policy == nil {
		return v
	}
	for i, rule := range policy.Rules {
		var why string
		switch {
		case rule.OnExitCodes != nil:
			why = byExitCode(rule.OnExitCodes, p)
		default:
			why = byCondition(rule.OnPodConditions, p)
		}
		if why != "" {
			return verdict{rule.Action, fmt.Sprintf("%s matching %v rule at index %d", why, rule.Action, i)}
		}
	}
	return v
}

func byExitCode(want *batchv1.PodFailurePolicyOnExitCodesRequirement, p *corev1.Pod) string {
	for _, c := range slices.Concat(p.Status.ContainerStatuses, p.Status.InitContainerStatuses) {
		if want.ContainerName != nil && *want.ContainerName != c.Name || c.State.Terminated == nil || c.State.Terminated.ExitCode == 0 {
			continue
		}
		code := c.State.Terminated.ExitCode
		if slices.Contains(want.Values, code) == (want.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn) {
			return fmt.Sprintf("Container %s for pod %s/%s failed with exit code %d", c.Name, p.Namespace, p.Name, code)
		}
	}
	return ""
}

func byCondition(want []batchv1.PodFailurePolicyOnPodConditionsPattern, p *corev1.Pod) string {
	for _, c := range p.Status.Conditions {
		for _, w := range want {
			if w.Type == c.Type && w.Status == c.Status {
				return fmt.Sprintf("Pod %s/%s has condition %v", p.Namespace, p.Name, c.Type)
			}
		}
	}
	return ""
}

// succeeds says by which rule a job has succeeded before all its indexes have.
func succeeds(policy *batchv1.SuccessPolicy, completions int, done indexes) (string, bool) {
	if policy == nil || len(done) == 0 {
		return "", false
	}
	for i, rule := range policy.Rules {
		of := indexes{{0, completions - 1}}
		if rule.SucceededIndexes != nil {
			of = parse(*rule.SucceededIndexes, completions)
		}
		need := of.count()
		if rule.SucceededCount != nil {
			need = int(*rule.SucceededCount)
		}
		if need > 0 && done.common(of) >= need {
			return fmt.Sprintf("Matched rules at index %d", i), true
		}
	}
	return "", false
}
