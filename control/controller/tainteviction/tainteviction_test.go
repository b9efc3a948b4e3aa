package tainteviction

import (
	"math"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-node/berth/control/controller"
)

func TestDeadline(t *testing.T) {
	added := metav1.NewTime(time.Unix(1_700_000_000, 0))
	taint := func(key string) corev1.Taint {
		return corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute, TimeAdded: &added}
	}
	tolerates := func(key string, seconds int64) corev1.Toleration {
		o := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists}
		if seconds >= 0 {
			o.TolerationSeconds = &seconds
		}
		return o
	}
	const never, now = time.Duration(-1), time.Duration(0)
	for name, c := range map[string]struct {
		taints      []corev1.Taint
		tolerations []corev1.Toleration
		want        time.Duration // since the taint was added
	}{
		"no taint":             {nil, nil, never},
		"not tolerated":        {[]corev1.Taint{taint("a")}, []corev1.Toleration{tolerates("b", -1)}, now},
		"for ever":             {[]corev1.Taint{taint("a")}, []corev1.Toleration{tolerates("a", -1)}, never},
		"for a while":          {[]corev1.Taint{taint("a")}, []corev1.Toleration{tolerates("a", 300)}, 300 * time.Second},
		"for what is ever":     {[]corev1.Taint{taint("a")}, []corev1.Toleration{tolerates("a", math.MaxInt64)}, controller.Seconds(math.MaxInt64)},
		"the shortest":         {[]corev1.Taint{taint("a")}, []corev1.Toleration{tolerates("a", 300), tolerates("", 20), tolerates("a", -1)}, 20 * time.Second},
		"the first of two":     {[]corev1.Taint{taint("a"), taint("b")}, []corev1.Toleration{tolerates("a", 300), tolerates("b", 30)}, 30 * time.Second},
		"one is not tolerated": {[]corev1.Taint{taint("a"), taint("b")}, []corev1.Toleration{tolerates("a", 300)}, now},
	} {
		at, evict := deadline(c.taints, c.tolerations, added.Time)
		if evict != (c.want != never) || evict && !at.Equal(added.Add(c.want)) {
			t.Errorf("%s: %s, %v", name, at.Sub(added.Time), evict)
		}
	}
}
