package admission

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-node/berth/agent/desired"
)

func TestTaints(t *testing.T) {
	taint := func(effect corev1.TaintEffect) []corev1.Taint {
		return []corev1.Taint{{Key: "broken", Value: "disk", Effect: effect}}
	}
	tolerates := func(p *corev1.Pod, tolerations ...corev1.Toleration) *corev1.Pod {
		p = p.DeepCopy()
		p.Spec.Tolerations = tolerations
		return p
	}
	from := func(o desired.Origin) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{desired.AnnotationSource: string(o)}}}
	}
	ofServer := from(desired.API)
	seconds := int64(30)
	for name, c := range map[string]struct {
		pod    *corev1.Pod
		taints []corev1.Taint
		out    bool
	}{
		"no taint":         {ofServer, nil, false},
		"not to come":      {ofServer, taint(corev1.TaintEffectNoSchedule), false}, // is the scheduler's
		"to go":            {ofServer, taint(corev1.TaintEffectNoExecute), true},
		"of a file":        {from(desired.File), taint(corev1.TaintEffectNoExecute), false},
		"tolerates":        {tolerates(ofServer, corev1.Toleration{Key: "broken", Value: "disk"}), taint(corev1.TaintEffectNoExecute), false},
		"tolerates all":    {tolerates(ofServer, corev1.Toleration{Operator: corev1.TolerationOpExists}), taint(corev1.TaintEffectNoExecute), false},
		"tolerates others": {tolerates(ofServer, corev1.Toleration{Key: "broken", Value: "net"}), taint(corev1.TaintEffectNoExecute), true},
		"tolerates a while": { // for how long, the control plane sees to
			tolerates(ofServer, corev1.Toleration{
				Key: "broken", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds,
			}), taint(corev1.TaintEffectNoExecute), false,
		},
	} {
		v := Taints(func() []corev1.Taint { return c.taints })(&Request{Pod: c.pod})
		if (v != nil) != c.out {
			t.Errorf("%s: %+v", name, v)
		}
		if v != nil && (!v.Final || v.Reason != "TaintToleration" || !strings.Contains(v.Message, "broken=disk:NoExecute")) {
			t.Errorf("%s: %+v", name, v)
		}
	}
}
