package plan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/pod/spec"
)

func rules(name string, policy corev1.ContainerRestartPolicy, rule ...corev1.ContainerRestartRule) func(*View) {
	return func(v *View) {
		c := spec.FindContainer(v.Pod, name)
		c.RestartPolicy, c.RestartPolicyRules = &policy, rule
		for i := range v.Seen.Containers[name] {
			v.Seen.Containers[name][i].Annotations["io.kubernetes.container.hash"] = spec.Hash(c)
		}
	}
}

func onExit(action corev1.ContainerRestartRuleAction, op corev1.ContainerRestartRuleOnExitCodesOperator, codes ...int32) corev1.ContainerRestartRule {
	return corev1.ContainerRestartRule{Action: action, ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: op, Values: codes}}
}

// A container's own policy and rules decide before the pod's policy does.
func TestPlanRules(t *testing.T) {
	const never, always = corev1.RestartPolicyNever, corev1.RestartPolicyAlways
	again := onExit(corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleOnExitCodesOpIn, 42, 43)
	unless := onExit(corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleOnExitCodesOpNotIn, 1)
	all := onExit(corev1.ContainerRestartRuleActionRestartAllContainers, corev1.ContainerRestartRuleOnExitCodesOpIn, 9)
	runPlans(t, []planCase{
		{name: "never of its own", policy: always, spec: "a b", seen: "sandbox a=exit1 b=running", change: rules("a", "Never")},
		{name: "always of its own", policy: never, spec: "a b", seen: "sandbox a=exit0 b=running", change: rules("a", "Always"), want: "start/a~10s"},
		{name: "a rule that fits", policy: never, spec: "a", seen: "sandbox a=exit42", change: rules("a", "Never", again), want: "start/a~10s"},
		{name: "a rule that does not", policy: always, spec: "a", seen: "sandbox a=exit7", change: rules("a", "Never", again), want: "finish", over: true},
		{name: "not in", policy: never, spec: "a", seen: "sandbox a=exit7", change: rules("a", "Never", unless), want: "start/a~10s"},
		{name: "init container by rule", policy: never, spec: "init:i a", seen: "sandbox i=exit42", change: rules("i", "Never", again), want: "start/i~10s"},
		{
			name: "all are sent back", policy: never, spec: "init:i a b", seen: "sandbox i=exit0 a=exit9@10s b=running", change: rules("a", "Never", all),
			want: "kill/b0@30s",
		},
		{
			name: "and begin with the init containers", policy: never, spec: "init:i a b", seen: "sandbox i=exit0 a=exit9@10s b=exit137@1s",
			change: rules("a", "Never", all), want: "start/i~10s^1",
		},
		{
			name: "what was made since counts", policy: never, spec: "init:i a b", seen: "sandbox i=exit0 a=exit9@10s b=exit137@5s i=exit0^1",
			change: rules("a", "Never", all), want: "start/a~10s^1 start/b~10s^1",
		},
		{
			name: "what was being started is waited for", policy: never, spec: "init:i a b", seen: "sandbox i=exit0 a=exit9@10s", busy: "start/b",
			change: rules("a", "Never", all),
		},
		{
			name: "and ended, whenever it was made", policy: never, spec: "init:i a b", seen: "sandbox i=exit0 a=exit9@10h b=running",
			change: rules("a", "Never", all), want: "kill/b0@30s",
		},
		{
			name: "or is past without having run", policy: never, spec: "init:i a b", seen: "sandbox i=exit0 a=exit9@10s b=created i=exit0^1 a=running^1",
			change: rules("a", "Never", all), want: "start/b^1",
		},
		{
			name: "the others are past also when who sent them back is done", policy: never, spec: "init:i a b",
			seen:   "sandbox i=exit0 a=exit9@20s b=exit137@10s i=exit0^1 a=exit0^1",
			change: rules("a", "Never", all), want: "start/b~10s^1",
		},
		{
			name: "again and again", policy: never, spec: "init:i a b", seen: "sandbox i=exit0 a=exit9@30s b=exit0@20s i=exit0^1 a=exit9@10s^1 b=running^1",
			change: rules("a", "Never", all), want: "kill/b1@30s",
		},
		{
			name: "exits of one round count once", policy: never, spec: "a b", seen: "sandbox a=exit9@20s b=exit9@10s a=running^1",
			change: func(v *View) {
				rules("a", "Never", all)(v)
				rules("b", "Never", all)(v)
			},
			want: "start/b~10s^1",
		},
		{
			name: "they end meanwhile", policy: never, spec: "a b", seen: "sandbox a=exit9@10s b=running",
			change: func(v *View) {
				rules("a", "Never", all)(v)
				v.End = &Ending{Since: planNow, Grace: time.Second}
			},
			want: "kill/b0@1s",
		},
		{
			name: "past its deadline", policy: always, spec: "a", seen: "sandbox a=running",
			change: func(v *View) { v.Deadline = planNow },
		},
		{
			name: "before its deadline", policy: always, spec: "a", seen: "sandbox a=running",
			change: func(v *View) { v.Deadline = planNow.Add(time.Minute) }, wake: time.Minute,
		},
	})
}
