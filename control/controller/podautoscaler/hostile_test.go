package podautoscaler

import (
	"math"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestAbsurdTargets has targets be nothing or less, as of an object that is older than the rules, and readings be as
// much or as little as a number can say: what is asked for is no accident of what an integer makes of it.
func TestAbsurdTargets(t *testing.T) {
	for _, value := range []int64{math.MinInt64, -1, 0, 1, math.MaxInt64} {
		for _, target := range []int64{math.MinInt64, -1, 0, 1, math.MaxInt64} {
			percent := int32(min(max(target, math.MinInt32), math.MaxInt32))
			for name, by := range map[string]gauge{
				"average": averaged(target), "utilization": utilized(percent, map[string]int64{"a": math.MaxInt64, "b": math.MaxInt64}),
			} {
				readings := map[string]reading{"a": {value: value}, "b": {value: value}}
				n, err := replicas(3, readings, grouped{ready: 2}, by, tolerance{off, off})
				if target <= 0 && err == nil {
					t.Errorf("%s: a target of %d is met by %d replicas", name, target, n)
				}
				if n < 0 {
					t.Errorf("%s: %d of %d asks for %d", name, value, target, n)
				}
			}
			of := scaled{current: 3, running: 3, tolerance: tolerance{off, off}}
			for _, q := range []autoscalingv2.MetricTarget{{Value: resource.NewMilliQuantity(target, "")}, {AverageValue: resource.NewMilliQuantity(target, "")}} {
				if n, _, err := byValue(of, value, q); n < 0 || target <= 0 && err == nil {
					t.Errorf("%d of %v asks for %d, %v", value, q, n, err)
				}
			}
		}
	}
	for v, want := range map[float64]int32{math.Inf(1): math.MaxInt32, math.Inf(-1): 0, 1.5: 2, -3: 0} {
		if got := ceil(v); got != want {
			t.Errorf("%g is %d", v, got)
		}
	}
	if got := ceil(math.NaN()); got != 0 {
		t.Errorf("what is no number is %d", got)
	}
}

// TestRemembered has an autoscaler be looked at all the time, as by who changes it all the time: what is remembered of
// it is bounded, and is stabilized by as before.
func TestRemembered(t *testing.T) {
	m := &memory{}
	b := bounds{least: 1, most: 100}
	at := now
	for i := range 20_000 {
		at = at.Add(time.Millisecond)
		m.decide(at, 5, int32(3+i%4), b)
	}
	if n := len(m.recommended); n > 4 {
		t.Errorf("%d recommendations are remembered", n)
	}
	if v := m.decide(at.Add(time.Second), 5, 1, b); v.replicas != 5 || !v.stabilized {
		t.Errorf("it is brought to %d", v.replicas)
	}
	if v := m.decide(at.Add(downWindow+2*time.Second), 5, 1, b); v.replicas != 1 {
		t.Errorf("after the window it is brought to %d", v.replicas)
	}
}
