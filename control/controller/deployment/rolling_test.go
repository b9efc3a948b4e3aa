package deployment

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func wanting(replicas, surge, unavailable int32) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "d", Namespace: "n", Generation: 1},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, ProgressDeadlineSeconds: new(int32(10)), Selector: &metav1.LabelSelector{},
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{
				MaxSurge: new(intstr.FromInt32(surge)), MaxUnavailable: new(intstr.FromInt32(unavailable)),
			}},
		},
	}
}

// having is a set with so many pods wanted, there and available.
func having(age int64, wanted, there, available int32) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("s", age), CreationTimestamp: metav1.Unix(1000+age, 0)},
		Spec:       appsv1.ReplicaSetSpec{Replicas: &wanted}, Status: appsv1.ReplicaSetStatus{Replicas: there, AvailableReplicas: available},
	}
}

func numbers(steps []resize) string {
	text := ""
	for _, s := range steps {
		text += fmt.Sprintf("%s:%d ", s.set.Name, s.to)
	}
	return text
}

func TestRoll(t *testing.T) {
	for name, c := range map[string]struct {
		d    *appsv1.Deployment
		now  *appsv1.ReplicaSet
		old  []*appsv1.ReplicaSet
		want string
	}{
		"the beginning":           {wanting(10, 3, 2), having(2, 0, 0, 0), []*appsv1.ReplicaSet{having(1, 10, 10, 10)}, "s2:3 s1:8 "},
		"nothing is available":    {wanting(10, 3, 2), having(2, 5, 5, 0), []*appsv1.ReplicaSet{having(1, 8, 8, 8)}, ""},
		"one more is":             {wanting(10, 3, 2), having(2, 5, 5, 1), []*appsv1.ReplicaSet{having(1, 8, 8, 8)}, "s1:7 "},
		"the unhealthy first":     {wanting(10, 3, 2), having(3, 0, 0, 0), []*appsv1.ReplicaSet{having(1, 8, 8, 8), having(2, 2, 2, 0)}, "s3:3 s2:0 "},
		"all but the old ones":    {wanting(10, 3, 2), having(2, 10, 10, 10), []*appsv1.ReplicaSet{having(1, 3, 3, 3)}, "s1:0 "},
		"done":                    {wanting(10, 3, 2), having(2, 10, 10, 10), []*appsv1.ReplicaSet{having(1, 0, 0, 0)}, ""},
		"more than wanted":        {wanting(5, 1, 1), having(2, 7, 7, 7), nil, "s2:5 "},
		"without surge":           {wanting(4, 0, 1), having(2, 0, 0, 0), []*appsv1.ReplicaSet{having(1, 4, 4, 4)}, "s1:3 "},
		"what counts is to go":    {wanting(10, 0, 2), having(2, 2, 2, 1), []*appsv1.ReplicaSet{having(1, 8, 10, 10)}, "s1:7 "},
		"as many as can be":       {wanting(math.MaxInt32, 1, 0), having(2, 1, 1, 1), []*appsv1.ReplicaSet{having(1, math.MaxInt32, 1, 1)}, "s1:2147483646 "},
		"no pods, so none is old": {wanting(0, 1, 0), having(2, 0, 0, 0), []*appsv1.ReplicaSet{having(1, 2, 2, 2)}, "s1:0 "},
	} {
		if got := numbers(roll(c.d, c.now, c.old)); got != c.want {
			t.Errorf("%s: %q, not %q", name, got, c.want)
		}
	}
}

func TestSpread(t *testing.T) {
	sized := func(s *appsv1.ReplicaSet, desired, most int32) *appsv1.ReplicaSet { size(s, desired, most); return s }
	for name, c := range map[string]struct {
		d        *appsv1.Deployment
		now, old *appsv1.ReplicaSet
		want     string
	}{
		"up":      {wanting(30, 3, 2), sized(having(2, 5, 5, 0), 10, 13), sized(having(1, 8, 8, 8), 10, 13), "s1:20 s2:13 "},
		"down":    {wanting(5, 3, 2), sized(having(2, 5, 5, 0), 10, 13), sized(having(1, 8, 8, 8), 10, 13), "s1:5 s2:3 "},
		"to none": {wanting(0, 3, 2), sized(having(2, 5, 5, 0), 10, 13), sized(having(1, 8, 8, 8), 10, 13), "s1:0 s2:0 "},
	} {
		if got := numbers(spread(c.d, c.now, []*appsv1.ReplicaSet{c.old})); got != c.want {
			t.Errorf("%s: %q, not %q", name, got, c.want)
		}
	}
}

// TestRollouts runs random rollouts whose sets say late what they have. At no time there are more pods than may be, or
// fewer available, and each comes to its end.
func TestRollouts(t *testing.T) {
	seed := rand.Uint64()
	for i := range 3000 {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		wanted, more, less := int32(1+random.IntN(12)), int32(random.IntN(4)), int32(random.IntN(4))
		d := wanting(wanted, more, less)
		surge, unavailable := bounds(d)
		sets := []*appsv1.ReplicaSet{having(1, wanted, wanted, wanted), having(2, 0, 0, 0)}
		real := []struct{ there, available int32 }{{wanted, wanted}, {}}
		for n := 0; ; n++ {
			if n == 5000 {
				t.Fatalf("seed %d, rollout %d does not end: %d of %d", seed, i, *sets[0].Spec.Replicas, *sets[1].Spec.Replicas)
			}
			if *sets[0].Spec.Replicas == 0 && real[1].available == wanted && real[0].there == 0 {
				break
			}
			at := random.IntN(2)
			s, r := sets[at], &real[at]
			switch random.IntN(4) {
			case 0: // the set makes and ends pods, those that are not available first
				for r.there > *s.Spec.Replicas {
					r.there--
					r.available = min(r.available, r.there)
				}
				r.there = max(r.there, *s.Spec.Replicas)
			case 1:
				if r.available < r.there {
					r.available++
				}
			case 2: // it says so
				s.Status.Replicas, s.Status.AvailableReplicas = r.there, r.available
			case 3:
				for _, step := range roll(d, sets[1], sets[:1]) {
					step.set.Spec.Replicas = &step.to
				}
			}
			if total := *sets[0].Spec.Replicas + *sets[1].Spec.Replicas; total > wanted+surge {
				t.Fatalf("seed %d, rollout %d: %d pods of %d and %d", seed, i, total, wanted, surge)
			}
			if available := real[0].available + real[1].available; available < wanted-unavailable {
				t.Fatalf("seed %d, rollout %d: %d available of %d, %d may miss", seed, i, available, wanted, unavailable)
			}
		}
	}
}

// TestConditions has a rollout go on, stand still, and be complete.
func TestConditions(t *testing.T) {
	d, at := wanting(2, 1, 0), time.Unix(1000, 0)
	now, old := having(2, 1, 1, 0), having(1, 2, 2, 2)
	is := func(want string) {
		t.Helper()
		c := condition(&d.Status, appsv1.DeploymentProgressing)
		if c == nil || c.Reason != want {
			t.Fatalf("it is %v, not %s", c, want)
		}
	}
	look := func() time.Duration {
		s := count(d, now, []*appsv1.ReplicaSet{old}, d.Status.Conditions, at)
		again := judge(d, "ReplicaSet \"s2\"", &s, at)
		d.Status = s
		return again
	}
	look()
	is(reasonUpdated)
	at = at.Add(5 * time.Second)
	if again := look(); again != 6*time.Second {
		t.Errorf("it is looked at again in %s", again)
	}
	at = at.Add(6 * time.Second)
	look()
	is(reasonTimeout)
	// What goes on after all is progressing again.
	now.Status.AvailableReplicas++
	look()
	is(reasonUpdated)
	d.Spec.Paused = true
	d.Status.Conditions = pausing(d, d.Status.Conditions, at)
	is(reasonPaused)
	d.Spec.Paused = false
	d.Status.Conditions = pausing(d, d.Status.Conditions, at)
	is(reasonResumed)
	now, old = having(2, 2, 2, 2), having(1, 0, 0, 0)
	look()
	is(reasonComplete)
	// A pod that fails later is no rollout that does not go on.
	now.Status.AvailableReplicas = 1
	at = at.Add(time.Hour)
	look()
	is(reasonComplete)
	if c := condition(&d.Status, appsv1.DeploymentAvailable); c.Status != corev1.ConditionFalse {
		t.Errorf("it is %v", c)
	}
	now.Status.Conditions = []appsv1.ReplicaSetCondition{{Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate"}}
	failing(&d.Status, now, nil)
	if c := condition(&d.Status, appsv1.DeploymentReplicaFailure); c == nil || c.Reason != "FailedCreate" {
		t.Errorf("it is %v", c)
	}
}

// TestAnnotate has a set take what its deployment says, and be another revision when it comes again.
func TestAnnotate(t *testing.T) {
	d := wanting(1, 1, 1)
	d.Annotations = map[string]string{"a": "b", revisionKey: "7", corev1.LastAppliedConfigAnnotation: "{}"}
	s := having(1, 1, 1, 1)
	if !annotate(d, s, 1) || s.Annotations["a"] != "b" || s.Annotations[revisionKey] != "1" || len(s.Annotations) != 2 {
		t.Errorf("it has %v", s.Annotations)
	}
	if annotate(d, s, 1) {
		t.Error("nothing is another one, and it is written")
	}
	annotate(d, s, 3)
	annotate(d, s, 5)
	if s.Annotations[revisionKey] != "5" || s.Annotations[historyKey] != "1,3" {
		t.Errorf("it has %v", s.Annotations)
	}
	list := ""
	for i := range 2000 {
		list = earlier(list, fmt.Sprint(i))
	}
	if len(list) > historyLimit || list[len(list)-4:] != "1999" {
		t.Errorf("the list has %d characters", len(list))
	}
}

// TestManyEarlier has users have written as many revisions as an annotation takes: they are cut off at once.
func TestManyEarlier(t *testing.T) {
	list := strings.Repeat(",", 20_000)
	if n := testing.AllocsPerRun(1, func() {
		if cut := earlier(list, "7"); len(cut) > historyLimit || !strings.HasSuffix(cut, ",,7") {
			t.Errorf("the list has %d characters", len(cut))
		}
	}); n > 10 {
		t.Errorf("it costs %.0f allocations", n)
	}
	long := strings.Repeat("7", 2*historyLimit)
	for list, want := range map[string]string{"": long, "1,2": long, long[1:]: long} {
		if got := earlier(list, long); got != want {
			t.Errorf("of %d characters %d are left", len(list), len(got))
		}
	}
}

// TestAbsurdSurge has a deployment ask for as many pods more as a number can say: as many are made as can be counted.
func TestAbsurdSurge(t *testing.T) {
	for _, wanted := range []int32{1, 1000, math.MaxInt32} {
		d := wanting(wanted, 0, 0)
		for _, text := range []string{"2147483647%", "100%", "999999999999%"} {
			of := intstr.FromString(text)
			d.Spec.Strategy.RollingUpdate.MaxSurge = &of
			if surge, unavailable := bounds(d); surge < 0 || unavailable < 0 || int64(surge)+int64(wanted) > math.MaxInt32 {
				t.Errorf("%s of %d is %d, %d", text, wanted, surge, unavailable)
			}
		}
	}
}
