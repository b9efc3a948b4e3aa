package apiserver

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestMergeKeeps what is not the node's to say, and what would go back.
func TestMergeKeeps(t *testing.T) {
	at := func(s int64) metav1.Time { return metav1.NewTime(time.Unix(s, 0)) }
	ready := func(s corev1.ConditionStatus, at metav1.Time) corev1.PodCondition {
		return corev1.PodCondition{Type: corev1.PodReady, Status: s, LastTransitionTime: at}
	}
	disrupted := corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI"}
	ended := func(code int32) []corev1.ContainerStatus {
		return []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}}}
	}
	running := []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	rules := func(p *corev1.Pod) {
		p.Spec.Containers[0].RestartPolicyRules = []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestart}}
	}
	policy := func(policy corev1.RestartPolicy) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.RestartPolicy = policy }
	}
	type status = corev1.PodStatus
	for name, c := range map[string]struct {
		pod             func(*corev1.Pod)
		says, has, want status
		moved           bool
	}{
		"owned by the server": {
			says: status{QOSClass: "Guaranteed", NominatedNodeName: "x", ResourceClaimStatuses: []corev1.PodResourceClaimStatus{{Name: "c"}}},
			has:  status{QOSClass: "Burstable", NominatedNodeName: "y"},
			want: status{QOSClass: "Burstable", NominatedNodeName: "y"},
		},
		"start": {says: status{StartTime: new(at(9))}, has: status{StartTime: new(at(3))}, want: status{StartTime: new(at(3))}},
		"final": {
			says: status{Phase: "Running", Conditions: []corev1.PodCondition{ready("True", at(9))}},
			has:  status{Phase: "Failed", Reason: "NodeLost", Conditions: []corev1.PodCondition{ready("True", at(3))}},
			want: status{Phase: "Failed", Reason: "NodeLost", Conditions: []corev1.PodCondition{{
				Type: corev1.PodReady, Status: "False", Reason: "PodFailed", LastTransitionTime: at(9),
			}}},
		},
		"other final":          {says: status{Phase: "Succeeded"}, has: status{Phase: "Failed"}, want: status{Phase: "Failed"}},
		"condition of others":  {says: status{Conditions: []corev1.PodCondition{{Type: "gate", Status: "False"}}}, has: status{Conditions: []corev1.PodCondition{{Type: "gate", Status: "True"}}}, want: status{Conditions: []corev1.PodCondition{{Type: "gate", Status: "True"}}}},
		"evicted by others":    {says: status{Phase: "Failed", Conditions: []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: "True", Reason: "TerminationByKubelet"}}}, has: status{Conditions: []corev1.PodCondition{disrupted}}, want: status{Phase: "Failed", Conditions: []corev1.PodCondition{disrupted}}},
		"evicted by the node":  {says: status{Phase: "Failed", Conditions: []corev1.PodCondition{disrupted}}, want: status{Phase: "Failed", Conditions: []corev1.PodCondition{disrupted}}},
		"not evicted yet":      {says: status{Phase: "Running", Conditions: []corev1.PodCondition{disrupted}}, want: status{Phase: "Running"}},
		"own condition over":   {has: status{Conditions: []corev1.PodCondition{{Type: corev1.PodResizePending}, disrupted}}, want: status{Conditions: []corev1.PodCondition{disrupted}}},
		"guessed time":         {says: status{Conditions: []corev1.PodCondition{ready("True", at(9))}}, has: status{Conditions: []corev1.PodCondition{ready("True", at(3))}}, want: status{Conditions: []corev1.PodCondition{ready("True", at(3))}}},
		"seen to change twice": {moved: true, says: status{Conditions: []corev1.PodCondition{ready("True", at(9))}}, has: status{Conditions: []corev1.PodCondition{ready("True", at(3))}}, want: status{Conditions: []corev1.PodCondition{ready("True", at(9))}}},
		"clock went back":      {says: status{Conditions: []corev1.PodCondition{ready("False", at(2))}}, has: status{Conditions: []corev1.PodCondition{ready("True", at(3))}}, want: status{Conditions: []corev1.PodCondition{ready("False", at(3))}}},
		"ended for good":       {pod: policy("Never"), says: status{ContainerStatuses: running}, has: status{ContainerStatuses: ended(1)}, want: status{ContainerStatuses: ended(1)}},
		"ended well":           {pod: policy("OnFailure"), says: status{ContainerStatuses: running}, has: status{ContainerStatuses: ended(0)}, want: status{ContainerStatuses: ended(0)}},
		"ended badly":          {pod: policy("OnFailure"), says: status{ContainerStatuses: running}, has: status{ContainerStatuses: ended(1)}, want: status{ContainerStatuses: running}},
		"restarts always":      {pod: policy("Always"), says: status{ContainerStatuses: running}, has: status{ContainerStatuses: ended(0)}, want: status{ContainerStatuses: running}},
		"restarts by a rule":   {pod: func(p *corev1.Pod) { policy("Never")(p); rules(p) }, says: status{ContainerStatuses: running}, has: status{ContainerStatuses: ended(0)}, want: status{ContainerStatuses: running}},
		"parts of a second":    {says: status{StartTime: new(metav1.NewTime(time.Unix(3, 500)))}, want: status{StartTime: new(at(3))}},
	} {
		pod := apiPod("a")
		if c.pod != nil {
			c.pod(pod)
		}
		pod.Status = c.says
		before := pod.DeepCopy()
		var moved map[corev1.PodConditionType]bool
		if c.moved {
			moved = map[corev1.PodConditionType]bool{corev1.PodReady: true}
		}
		got := merge(pod, &c.has, moved)
		if !equality.Semantic.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
		if again := merge(pod, &got, nil); !equality.Semantic.DeepEqual(again, got) {
			t.Errorf("%s: then %+v", name, again)
		}
		if !equality.Semantic.DeepEqual(pod, before) {
			t.Errorf("%s: the pod is changed", name)
		}
	}
}

// An agent that was restarted, and says the same with times that it had to guess, writes nothing.
func TestRestartedAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		w := begin(t, s, nil)
		w.Listed()
		pod := s.add(apiPod("a"))
		w.Put(as(pod, corev1.PodRunning, true))
		settle(t, w)
		next := begin(t, s, nil)
		next.Seen(s.get(keyOf(pod)))
		next.Listed()
		started := s.get(keyOf(pod)).Status.ContainerStatuses[0].State.Running.StartedAt
		time.Sleep(time.Hour)
		again := as(pod, corev1.PodRunning, true)
		again.Status.ContainerStatuses[0].State.Running.StartedAt = started
		next.Put(again)
		settle(t, next)
		want(t, s, "patch a")
	})
}

// What the server answers may be of another pod, or make no sense: nothing of it is believed for long.
func TestHostileAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		l := &liar{server: s, lies: 3}
		w := begin(t, s, func(c *Config) { c.Client = l })
		w.Listed()
		pod := s.add(apiPod("a"))
		s.told = nil
		w.Put(as(pod, corev1.PodRunning, true))
		settle(t, w)
		if has := s.get(keyOf(pod)); has.Status.Phase != corev1.PodRunning || l.lies > 0 {
			t.Errorf("the server has %+v", has.Status)
		}
		w.Put(as(pod, corev1.PodSucceeded, false))
		settle(t, w)
		if has := s.get(keyOf(pod)); has.Status.Phase != corev1.PodSucceeded {
			t.Errorf("the server has %+v", has.Status)
		}
	})
}
