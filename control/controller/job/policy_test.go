package job

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

func TestIndexes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text        string
		completions int
		want        string
		count       int
	}{
		{"", 5, "", 0},
		{"0,1,2,4", 5, "0-2,4", 4},
		{"0-9", 3, "0-2", 3},
		{"7", 3, "", 0},
		{"3,4", 9, "3,4", 2},
		{"1-x,5,-3,4-2", 9, "5", 1},
		{"0-4,2-6", 99, "0-6", 7},
	} {
		x := parse(c.text, c.completions)
		if x.String() != c.want || x.count() != c.count {
			t.Errorf("%q of %d is %q, %d; want %q, %d", c.text, c.completions, x, x.count(), c.want, c.count)
		}
	}
	x := parse("1-3,7", 10).with([]int{4, 0, 7})
	if x.String() != "0-4,7" || !x.has(4) || x.has(5) || x.common(parse("3-8", 10)) != 3 {
		t.Errorf("it is %q", x)
	}
}

// TestManyIndexes has what is done in a row, however much it is, be passed over at once.
func TestManyIndexes(t *testing.T) {
	n, mode := int32(math.MaxInt32), batchv1.IndexedCompletion
	parallel := int32(3)
	j := &batchv1.Job{Spec: batchv1.JobSpec{Completions: &n, Parallelism: &parallel, CompletionMode: &mode}}
	for range 20 { // each of them would count to two thousand million
		j.Status.CompletedIndexes = "0-5,7-2147483600"
		p := decide(j, nil, time.Now())
		var made []int
		for _, s := range p.create {
			made = append(made, s.index)
		}
		if !slices.Equal(made, []int{6, 2147483601, 2147483602}) {
			t.Fatalf("made are %v", made)
		}
	}
}

func failed(code int32, conditions ...corev1.PodCondition) *corev1.Pod {
	p := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed, Conditions: conditions}}
	p.Namespace, p.Name = "n", "p"
	p.Status.ContainerStatuses = []corev1.ContainerStatus{
		{Name: "fine", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}},
		{Name: "c", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}},
	}
	return p
}

func TestJudge(t *testing.T) {
	t.Parallel()
	c := "c"
	policy := &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
		{Action: batchv1.PodFailurePolicyActionIgnore, OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{
			{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue},
		}},
		{Action: batchv1.PodFailurePolicyActionFailIndex, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{
			ContainerName: &c, Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{3},
		}},
		{Action: batchv1.PodFailurePolicyActionFailJob, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{
			Operator: batchv1.PodFailurePolicyOnExitCodesOpNotIn, Values: []int32{1, 3},
		}},
	}}
	hit := corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}
	for _, c := range []struct {
		pod  *corev1.Pod
		want batchv1.PodFailurePolicyAction
	}{
		{failed(3, hit), batchv1.PodFailurePolicyActionIgnore},
		{failed(3), batchv1.PodFailurePolicyActionFailIndex},
		{failed(1), batchv1.PodFailurePolicyActionCount},
		{failed(42), batchv1.PodFailurePolicyActionFailJob},
		{failed(0), batchv1.PodFailurePolicyActionCount}, // a container that succeeded matches no rule
	} {
		if v := judge(policy, c.pod); v.action != c.want {
			t.Errorf("%v: %v, want %s", c.pod.Status, v, c.want)
		}
	}
	const want = "Container c for pod n/p failed with exit code 42 matching FailJob rule at index 2"
	if v := judge(policy, failed(42)); v.message != want {
		t.Errorf("it says %q", v.message)
	}
}

// TestCommon counts what two lists of indexes have in common as if it went through each, in as many steps as there are
// intervals: of a job of 100,000 indexes and rules of as many there may be tens of thousands in each.
func TestCommon(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	some := func(n int) indexes {
		var all []int
		for range r.IntN(n) {
			all = append(all, r.IntN(n))
		}
		return indexes(nil).with(all)
	}
	for range 2000 {
		x, y := some(40), some(40)
		want := 0
		for i := range 40 {
			if x.has(i) && y.has(i) {
				want++
			}
		}
		if got := x.common(y); got != want {
			t.Fatalf("%q and %q have %d in common, want %d", x, y, got, want)
		}
	}
	var even indexes
	for i := range 200_000 {
		even = append(even, interval{2 * i, 2 * i})
	}
	if n := even.common(even); n != len(even) {
		t.Errorf("they have %d in common", n)
	}
}
