package podautoscaler

import (
	"fmt"
	"maps"
	"math"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var now = time.Unix(100000, 0)

// pod is one that has run for an hour, if it is ready.
func pod(i int, ready bool) *corev1.Pod {
	began, status := now.Add(-time.Hour), corev1.ConditionTrue
	if !ready {
		began, status = now.Add(-10*time.Second), corev1.ConditionFalse
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", i)},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
		}}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, StartTime: &metav1.Time{Time: began},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status, LastTransitionTime: metav1.NewTime(began.Add(time.Second))}},
		},
	}
}

// TestReplicas takes pods that are not ready, or of which nothing is known, for what changes the least.
func TestReplicas(t *testing.T) {
	for name, c := range map[string]struct {
		readings       []int64 // of pods that are ready
		unready, lacks int
		target, want   int32
	}{
		"more":                       {[]int64{300, 500, 700}, 0, 0, 30, 5},
		"on target":                  {[]int64{300, 310, 290}, 0, 0, 30, 3},
		"within tolerance":           {[]int64{320, 320, 320}, 0, 0, 30, 3},
		"fewer":                      {[]int64{100, 300, 500, 250, 250}, 0, 0, 50, 3},
		"unready are idle":           {[]int64{500, 700}, 1, 0, 30, 4},
		"unready make it no more":    {[]int64{400}, 1, 0, 30, 2},
		"missing are idle":           {[]int64{500, 700}, 0, 1, 30, 4},
		"missing are full":           {[]int64{100, 100}, 0, 1, 40, 3},
		"unready count not of fewer": {[]int64{100, 100}, 1, 0, 40, 1},
		"high target, missing":       {[]int64{100, 450}, 0, 2, 200, 3},
	} {
		var pods []*corev1.Pod
		readings := map[string]reading{}
		add := func(ready bool) *corev1.Pod {
			p := pod(len(pods), ready)
			pods = append(pods, p)
			return p
		}
		for _, v := range c.readings {
			readings[add(true).Name] = reading{v, now, time.Minute}
		}
		for range c.unready {
			readings[add(false).Name] = reading{400, now, time.Minute}
		}
		for range c.lacks {
			add(true)
		}
		requests, err := requestsOf(pods, "", corev1.ResourceCPU)
		if err != nil {
			t.Fatal(err)
		}
		g := group(pods, readings, corev1.ResourceCPU, now)
		got, err := replicas(int32(len(pods)), readings, g, utilized(c.target, requests), tolerance{off, off})
		if err != nil || got != c.want {
			t.Errorf("%s: %d and not %d: %v", name, got, c.want, err)
		}
	}
}

// TestHugeReadings has metrics that are as much as a number can say ask for the most pods, and not for the fewest.
func TestHugeReadings(t *testing.T) {
	var pods []*corev1.Pod
	all, requests := map[string]reading{}, map[string]int64{}
	for i := range 3 {
		p := pod(i, true)
		pods = append(pods, p)
		all[p.Name], requests[p.Name] = reading{value: math.MaxInt64}, 1000
	}
	for name, by := range map[string]gauge{"mean": averaged(1000), "utilization": utilized(80, requests)} {
		readings := maps.Clone(all)
		g := group(pods, readings, corev1.ResourceMemory, now)
		if n, err := replicas(3, readings, g, by, tolerance{0.1, 0.1}); err != nil || n < 1_000_000 {
			t.Errorf("%s: %d pods, %v", name, n, err)
		}
	}
}

func TestRequests(t *testing.T) {
	p := pod(1, true)
	always := corev1.ContainerRestartPolicyAlways
	p.Spec.InitContainers = []corev1.Container{{Name: "init"}, {Name: "side", RestartPolicy: &always, Resources: p.Spec.Containers[0].Resources}}
	if got, err := requestsOf([]*corev1.Pod{p}, "", corev1.ResourceCPU); err != nil || got["p1"] != 2000 {
		t.Errorf("it asks for %v: %v", got, err)
	}
	if got, err := requestsOf([]*corev1.Pod{p}, "side", corev1.ResourceCPU); err != nil || got["p1"] != 1000 {
		t.Errorf("one container asks for %v: %v", got, err)
	}
	if _, err := requestsOf([]*corev1.Pod{p}, "other", corev1.ResourceCPU); err == nil {
		t.Error("a container that is not there asks for something")
	}
	if _, err := requestsOf([]*corev1.Pod{p}, "", corev1.ResourceMemory); err == nil {
		t.Error("what is not asked for is")
	}
	p.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3")}}
	if got, err := requestsOf([]*corev1.Pod{p}, "", corev1.ResourceCPU); err != nil || got["p1"] != 3000 {
		t.Errorf("as a pod it asks for %v: %v", got, err)
	}
}

// TestDecide has numbers change as fast as they may.
func TestDecide(t *testing.T) {
	rules := func(window int32, choice autoscalingv2.ScalingPolicySelect, policies ...autoscalingv2.HPAScalingPolicy) *autoscalingv2.HPAScalingRules {
		return &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: &window, SelectPolicy: &choice, Policies: policies}
	}
	pods := func(n, seconds int32) autoscalingv2.HPAScalingPolicy {
		return autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PodsScalingPolicy, Value: n, PeriodSeconds: seconds}
	}
	percent := func(n, seconds int32) autoscalingv2.HPAScalingPolicy {
		return autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PercentScalingPolicy, Value: n, PeriodSeconds: seconds}
	}
	highest, lowest := autoscalingv2.MaxChangePolicySelect, autoscalingv2.MinChangePolicySelect
	quick := &autoscalingv2.HorizontalPodAutoscalerBehavior{
		ScaleUp: rules(0, highest, pods(4, 60), percent(100, 60)), ScaleDown: rules(0, lowest, pods(4, 60), percent(10, 60)),
	}
	for name, c := range map[string]struct {
		m                      memory
		current, desired, want int32
		behavior               *autoscalingv2.HorizontalPodAutoscalerBehavior
		reason                 string
	}{
		"doubles":              {memory{}, 10, 90, 20, nil, "ScaleUpLimit"},
		"four are fine":        {memory{}, 1, 90, 4, nil, "ScaleUpLimit"},
		"not above":            {memory{}, 60, 101, 100, nil, "TooManyReplicas"},
		"not below":            {memory{}, 10, 0, 2, nil, "TooFewReplicas"},
		"waits to shrink":      {memory{recommended: []noted{{now.Add(-time.Minute), 9}}}, 10, 3, 9, nil, "DesiredWithinRange"},
		"has waited":           {memory{recommended: []noted{{now.Add(-6 * time.Minute), 9}}}, 10, 3, 3, nil, "DesiredWithinRange"},
		"most of policies":     {memory{}, 10, 90, 20, quick, "ScaleUpLimit"},
		"least of policies":    {memory{}, 100, 10, 96, quick, "ScaleDownLimit"},
		"percent of few":       {memory{}, 20, 10, 18, quick, "ScaleDownLimit"},
		"has grown already":    {memory{ups: []noted{{now.Add(-time.Second), 5}}}, 10, 90, 10, quick, "ScaleUpLimit"},
		"has grown long ago":   {memory{ups: []noted{{now.Add(-61 * time.Second), 5}}}, 10, 90, 20, quick, "ScaleUpLimit"},
		"must not grow":        {memory{}, 10, 90, 10, &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: rules(0, autoscalingv2.DisabledPolicySelect, pods(1, 1))}, "ScaleUpLimit"},
		"waits to grow":        {memory{recommended: []noted{{now.Add(-time.Minute), 12}}}, 10, 15, 12, &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: rules(300, highest, pods(9, 60))}, "DesiredWithinRange"},
		"stays in between":     {memory{recommended: []noted{{now.Add(-time.Minute), 8}, {now.Add(-time.Minute), 12}}}, 10, 15, 10, &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: rules(300, highest, pods(9, 60)), ScaleDown: rules(300, highest, pods(9, 60))}, "DesiredWithinRange"},
		"an end of its number": {memory{}, 1 << 30, 1<<31 - 1, 100, nil, "TooManyReplicas"},
	} {
		if v := c.m.decide(now, c.current, c.desired, bounds{2, 100, c.behavior}); v.replicas != c.want || v.limitReason != c.reason {
			t.Errorf("%s: %d by %s and not %d", name, v.replicas, v.limitReason, c.want)
		}
	}
}

func TestByValue(t *testing.T) {
	q := func(s string) *resource.Quantity { v := resource.MustParse(s); return &v }
	of := scaled{current: 3, running: 3, pods: []*corev1.Pod{pod(1, true), pod(2, true), pod(3, false)}, tolerance: tolerance{off, off}}
	for _, c := range []struct {
		value  int64
		target autoscalingv2.MetricTarget
		want   int32
	}{
		{30_000, autoscalingv2.MetricTarget{Value: q("10")}, 6},
		{10_500, autoscalingv2.MetricTarget{Value: q("10")}, 3},
		{35_000, autoscalingv2.MetricTarget{AverageValue: q("10")}, 4},
		{31_000, autoscalingv2.MetricTarget{AverageValue: q("10")}, 3},
		{1 << 62, autoscalingv2.MetricTarget{AverageValue: q("1m")}, 1<<31 - 1},
	} {
		if got, _, err := byValue(of, c.value, c.target); err != nil || got != c.want {
			t.Errorf("%v: %d: %v", c, got, err)
		}
	}
	if _, _, err := byValue(of, 1, autoscalingv2.MetricTarget{}); err == nil {
		t.Error("without a target there are replicas")
	}
}
