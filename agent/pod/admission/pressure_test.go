package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/pod/podtest"
)

func TestPressure(t *testing.T) {
	const memory, disk, pid = corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure
	burstable := func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Mi")}
	}
	tolerant := func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists}}
	}
	other := func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeDiskPressure, Operator: corev1.TolerationOpExists}}
	}
	critical := func(p *corev1.Pod) { p.Spec.Priority = new(int32(systemCritical)) }
	ofAPI := func(p *corev1.Pod) {
		p.Annotations = map[string]string{desired.AnnotationSource: string(desired.API)}
	}
	nothing := func(*corev1.Pod) {}
	for _, c := range []struct {
		name    string
		change  func(*corev1.Pod)
		cluster bool
		holding []corev1.NodeConditionType
		comes   bool
	}{
		{"nothing is short", nothing, false, nil, true},
		{"best effort, memory", nothing, false, []corev1.NodeConditionType{memory}, false},
		{"tolerant, memory", tolerant, false, []corev1.NodeConditionType{memory}, true},
		{"tolerant of another, memory", other, false, []corev1.NodeConditionType{memory}, false},
		{"burstable, memory", burstable, false, []corev1.NodeConditionType{memory}, true},
		{"burstable, disk", burstable, false, []corev1.NodeConditionType{disk}, false},
		{"burstable, tasks", burstable, false, []corev1.NodeConditionType{pid}, false},
		{"burstable, both", burstable, false, []corev1.NodeConditionType{memory, disk}, false},
		{"tolerant, both", tolerant, false, []corev1.NodeConditionType{memory, pid}, false},
		{"critical", critical, false, []corev1.NodeConditionType{memory, disk, pid}, true},
		{"static, of a cluster's node", nothing, true, []corev1.NodeConditionType{disk}, true},
		{"of an API server", ofAPI, true, []corev1.NodeConditionType{disk}, false},
	} {
		pod := podtest.New("p")
		c.change(pod)
		check := Pressure(func() []corev1.NodeConditionType { return c.holding }, func(p *corev1.Pod) bool { return Spared(p, c.cluster) })
		v := check(&Request{Pod: pod})
		if (v == nil) != c.comes || v != nil && (v.Reason != "Evicted" || v.Final) {
			t.Errorf("%s: %+v", c.name, v)
		}
	}
	v := Pressure(func() []corev1.NodeConditionType { return []corev1.NodeConditionType{memory} }, func(*corev1.Pod) bool { return false })(&Request{Pod: podtest.New("p")})
	if v == nil || v.Message != "The node had condition: [MemoryPressure]. " {
		t.Errorf("%+v", v)
	}
}
