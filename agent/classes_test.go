package agent

import (
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-node/berth/cgroups/kube"
)

// TestSums: what pods request is what the pods have that there are now, and nothing of those that were is kept.
func TestSums(t *testing.T) {
	pod := func(cpu string) *corev1.Pod {
		r := corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu)}}
		return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: r}}}}
	}
	want := func(milli ...int64) (out []kube.Requests) {
		for _, m := range milli {
			out = append(out, kube.Requests{Class: corev1.PodQOSBurstable, MilliCPU: m})
		}
		return out
	}
	a, b, resized := pod("100m"), pod("200m"), pod("300m")
	var s sums
	for _, c := range []struct {
		pods []*corev1.Pod
		want []kube.Requests
	}{
		{[]*corev1.Pod{a, b}, want(100, 200)},
		{[]*corev1.Pod{b, a}, want(200, 100)},
		{[]*corev1.Pod{a, resized}, want(100, 300)},
		{nil, nil},
	} {
		if got := s.of(c.pods); !slices.Equal(got, c.want) || len(s) != len(c.pods) {
			t.Errorf("%v, of which %d are kept, want %v", got, len(s), c.want)
		}
	}
}

// TestTotals: the sums of the classes are the same in whatever order the pods are, and whether or not there are pods
// that request nothing.
func TestTotals(t *testing.T) {
	pods := []kube.Requests{
		{Class: corev1.PodQOSBurstable, MilliCPU: 100, Memory: 1},
		{Class: corev1.PodQOSGuaranteed, MilliCPU: 5, Memory: 7},
		{Class: corev1.PodQOSBestEffort},
		{Class: corev1.PodQOSBurstable, MilliCPU: 20, Memory: 2},
	}
	want := totals{
		corev1.PodQOSGuaranteed: {Class: corev1.PodQOSGuaranteed, MilliCPU: 5, Memory: 7},
		corev1.PodQOSBurstable:  {Class: corev1.PodQOSBurstable, MilliCPU: 120, Memory: 3},
	}
	for range pods {
		pods = append(pods[1:], pods[0])
		if got := totalsOf(pods); !maps.Equal(got, want) {
			t.Errorf("%v of %v, want %v", got, pods, want)
		}
	}
}
