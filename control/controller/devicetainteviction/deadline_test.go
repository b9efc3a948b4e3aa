package devicetainteviction

import (
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestDeadline(t *testing.T) {
	added := metav1.NewTime(time.Unix(1_700_000_000, 0))
	later := metav1.NewTime(added.Add(time.Minute))
	of := func(effect resourcev1.DeviceTaintEffect, since *metav1.Time, seconds ...int64) []taint {
		one := taint{DeviceTaint: resourcev1.DeviceTaint{Key: "k", Effect: effect, TimeAdded: &added}, since: since}
		for _, s := range seconds {
			o := resourcev1.DeviceToleration{Key: "k", Operator: resourcev1.DeviceTolerationOpExists}
			if s >= 0 {
				o.TolerationSeconds = &s
			}
			one.tolerations = append(one.tolerations, o)
		}
		return []taint{one}
	}
	const never = time.Duration(-1)
	for name, c := range map[string]struct {
		all  []taint
		want time.Duration // since the taint was added
	}{
		"no taint":            {nil, never},
		"no effect":           {of(resourcev1.DeviceTaintEffectNone, nil), never},
		"new pods only":       {of(resourcev1.DeviceTaintEffectNoSchedule, nil), never},
		"at once":             {of(resourcev1.DeviceTaintEffectNoExecute, nil), 0},
		"for ever":            {of(resourcev1.DeviceTaintEffectNoExecute, nil, -1), never},
		"the shortest":        {of(resourcev1.DeviceTaintEffectNoExecute, nil, 30, 20, -1), 20 * time.Second},
		"from the allocation": {of(resourcev1.DeviceTaintEffectNoExecute, &later, 20), 80 * time.Second},
	} {
		at, by := deadline(c.all, added.Time)
		if (by != nil) != (c.want != never) || by != nil && !at.Equal(added.Add(c.want)) {
			t.Errorf("%s: %s, %v", name, at.Sub(added.Time), by)
		}
	}
}
