package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/cgroups/kube"
)

func asking(cpu, memory string) *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)},
	}}}}}
}

func sumOf(pods ...*corev1.Pod) *Sum {
	s := &Sum{}
	for _, p := range pods {
		s.Add(ShareOf(p))
	}
	return s
}

// TestSum takes away what was added, in another order, and finds nothing left.
func TestSum(t *testing.T) {
	s := &Sum{}
	none := s.Clone()
	a, b := ShareOf(asking("1500m", "1Gi")), ShareOf(asking("100n", "3"))
	s.Add(a)
	s.Add(b)
	before := s.Clone()
	s.Sub(a)
	if cpu := before.requests[corev1.ResourceCPU]; before.pods != 2 || cpu.Cmp(resource.MustParse("1500000100n")) != 0 {
		t.Errorf("the sum of both is %+v", before)
	}
	if cpu := s.requests[corev1.ResourceCPU]; s.pods != 1 || cpu.Cmp(resource.MustParse("100n")) != 0 {
		t.Errorf("the sum of one is %+v", s)
	}
	s.Sub(b)
	for name, q := range s.requests {
		if !q.IsZero() {
			t.Errorf("%s of nobody is %s", name, &q)
		}
	}
	if s.pods != 0 || none.pods != 0 || len(none.requests) != 0 {
		t.Errorf("%d pods are left, and %+v has changed", s.pods, none)
	}
}

func TestFits(t *testing.T) {
	allocatable := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("1Gi"), corev1.ResourcePods: resource.MustParse("3"),
		corev1.ResourceEphemeralStorage: resource.MustParse("1Gi"),
	}
	big := asking("0", "0")
	big.Spec.Containers[0].Resources.Requests[corev1.ResourceEphemeralStorage] = resource.MustParse("2Gi")
	for _, tt := range []struct {
		name            string
		pod             *corev1.Pod
		here            []*corev1.Pod
		reason, message string
		final           bool
	}{
		{name: "exactly", pod: asking("1500m", "512Mi"), here: []*corev1.Pod{asking("500m", "512Mi")}},
		{name: "cpu", pod: asking("1600m", "0"), here: []*corev1.Pod{asking("500m", "0")}, reason: "OutOfcpu", message: "Node didn't have enough resource: cpu, requested: 1600, used: 500, capacity: 2000"},
		{name: "memory", pod: asking("1", "1Gi"), here: []*corev1.Pod{asking("1", "1")}, reason: "OutOfmemory", message: "Node didn't have enough resource: memory, requested: 1073741824, used: 1, capacity: 1073741824"},
		{name: "never", pod: asking("3", "0"), reason: "OutOfcpu", message: "Node didn't have enough resource: cpu, requested: 3000, used: 0, capacity: 2000", final: true},
		{name: "nothing of what is used up", pod: asking("0", "0"), here: []*corev1.Pod{asking("3", "2Gi")}},
		{name: "disk", pod: big, reason: "OutOfephemeral-storage", message: "Node didn't have enough resource: ephemeral-storage, requested: 2147483648, used: 0, capacity: 1073741824", final: true},
		{name: "pods", pod: asking("0", "0"), here: []*corev1.Pod{{}, {}, {}}, reason: "OutOfpods", message: "Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3"},
	} {
		v := fits(tt.pod, sumOf(tt.here...), allocatable)
		if tt.reason == "" && v == nil {
			continue
		}
		if v == nil || v.Reason != tt.reason || v.Message != tt.message || v.Final != tt.final {
			t.Errorf("%s: %+v", tt.name, v)
		}
	}
	huge := asking("0", "0")
	huge.Spec.Containers[0].Resources.Requests["hugepages-2Mi"] = resource.MustParse("2Mi")
	if v := fits(huge, &Sum{}, allocatable); v == nil || !v.Final || v.Message != "Node didn't have enough resource: hugepages-2Mi, requested: 2097152, used: 0, capacity: 0" {
		t.Errorf("huge pages that are not there: %+v", v)
	}
	tiny := asking("0", "0")
	tiny.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("2Mi")}
	if v := fits(tiny, &Sum{}, allocatable); v == nil || !v.Final || v.Message != "container a: limits.memory is 2Mi, 2097152 bytes: the least that a container can be started in is 3145728 bytes" {
		t.Errorf("tiny limit: %+v", v)
	}
	bad := asking("0", "0")
	bad.Annotations = map[string]string{kube.IOWeightAnnotation: "0"}
	if v := fits(bad, &Sum{}, allocatable); v == nil || v.Reason != "UnexpectedAdmissionError" || !v.Final {
		t.Errorf("bad annotation: %+v", v)
	}
}

// TestFitsCountedElsewhere: of a pod of an API server, what the node does not know is a scheduler's to count. What a
// plugin offers, or has offered, is the node's.
func TestFitsCountedElsewhere(t *testing.T) {
	asks := func(origin desired.Origin, name corev1.ResourceName) *corev1.Pod {
		p := asking("1", "0")
		p.Annotations = map[string]string{desired.AnnotationSource: string(origin)}
		p.Spec.Containers[0].Resources.Requests[name] = resource.MustParse("2")
		return p
	}
	allocatable := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("2"), "example.com/few": resource.MustParse("1"), "example.com/gone": resource.MustParse("0"),
	}
	for _, tt := range []struct {
		name    corev1.ResourceName
		origin  desired.Origin
		refused bool
	}{
		{"example.com/fakecpu", desired.API, false},
		{"example.com/fakecpu", desired.File, true},
		{"example.com/fakecpu", desired.URL, true},
		{"example.com/few", desired.API, true},
		{"example.com/gone", desired.API, true},
		{"hugepages-2Mi", desired.API, true},
	} {
		v := fits(asks(tt.origin, tt.name), sumOf(asks(tt.origin, tt.name)), allocatable)
		if refused := v != nil; refused != tt.refused || refused && v.Reason != "OutOf"+string(tt.name) {
			t.Errorf("%s of %s: %+v", tt.name, tt.origin, v)
		}
	}
	// With what nobody knows, what the node does know counts as ever.
	if v := fits(asks(desired.API, "example.com/fakecpu"), sumOf(asking("2", "0")), allocatable); v == nil || v.Reason != "OutOfcpu" {
		t.Errorf("%+v", v)
	}
}
