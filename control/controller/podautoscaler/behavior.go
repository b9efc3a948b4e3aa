package podautoscaler

import (
	"math"
	"slices"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
)

const (
	// downWindow is for how long the highest that was recommended counts, unless the object says otherwise.
	downWindow = 5 * time.Minute
	// remembered is longer than any window or period may be.
	remembered = time.Hour
)

// noted is a number of replicas, or a change of it, at a time.
type noted struct {
	at time.Time
	n  int32
}

// memory is what is known of an autoscaler beside its object. What is lost by a restart is made up for by the replicas
// that there are, which count as recommended.
type memory struct{ recommended, ups, downs []noted }

// recommend notes what is recommended. Whatever window the same number of before is in, this one is, too: so there are
// not more than there were different ones, however often somebody has them looked at.
func (m *memory) recommend(now time.Time, n int32) {
	m.recommended = slices.DeleteFunc(m.recommended, func(r noted) bool { return r.n == n })
	m.recommended = append(m.recommended, noted{now, n})
}

// changed notes that the number of replicas is another one.
func (m *memory) changed(now time.Time, from, to int32) {
	if to > from {
		m.ups = append(m.ups, noted{now, to - from})
	} else {
		m.downs = append(m.downs, noted{now, from - to})
	}
}

func (m *memory) forget(now time.Time) {
	old := func(n noted) bool { return now.Sub(n.at) > remembered }
	m.recommended, m.ups, m.downs = slices.DeleteFunc(m.recommended, old), slices.DeleteFunc(m.ups, old), slices.DeleteFunc(m.downs, old)
}

// verdict is how many replicas there are to be, and what stands in the way of more or fewer.
type verdict struct {
	replicas                int32
	stabilized, limited     bool
	stableReason, stableMsg string
	limitReason, limitMsg   string
}

// bounds are what an object says of its replicas.
type bounds struct {
	least, most int32
	behavior    *autoscalingv2.HorizontalPodAutoscalerBehavior
}

// decide brings what metrics ask for in line with what was asked for before, and with how fast it may change.
func (m *memory) decide(now time.Time, current, desired int32, b bounds) verdict {
	v := verdict{stableReason: "ReadyForNewScale", stableMsg: "recommended size matches current size"}
	up, down := windows(b.behavior)
	stable := m.stabilize(now, current, desired, up, down)
	m.recommend(now, desired)
	if stable != desired {
		v.stabilized = true
		v.stableReason, v.stableMsg = "ScaleDownStabilized", "recent recommendations were higher than current one, applying the highest recent recommendation"
		if desired >= current && b.behavior != nil {
			v.stableReason, v.stableMsg = "ScaleUpStabilized", "recent recommendations were lower than current one, applying the lowest recent recommendation"
		}
	}
	m.limit(now, current, stable, b, &v)
	v.limited = v.replicas != stable
	return v
}

func windows(b *autoscalingv2.HorizontalPodAutoscalerBehavior) (up, down time.Duration) {
	up, down = 0, downWindow
	if b == nil {
		return up, down
	}
	if r := b.ScaleUp; r != nil && r.StabilizationWindowSeconds != nil {
		up = time.Duration(*r.StabilizationWindowSeconds) * time.Second
	}
	if r := b.ScaleDown; r != nil && r.StabilizationWindowSeconds != nil {
		down = time.Duration(*r.StabilizationWindowSeconds) * time.Second
	}
	return up, down
}

// stabilize has the number stay where it is between the lowest that was recommended in the one window and the highest
// in the other.
func (m *memory) stabilize(now time.Time, current, desired int32, up, down time.Duration) int32 {
	lowest, highest := desired, desired
	for _, r := range m.recommended {
		if now.Sub(r.at) < up {
			lowest = min(lowest, r.n)
		}
		if now.Sub(r.at) < down {
			highest = max(highest, r.n)
		}
	}
	return min(max(current, lowest), max(highest, lowest))
}

// limit is how far the number may go now.
func (m *memory) limit(now time.Time, current, desired int32, b bounds, v *verdict) {
	v.replicas, v.limitReason, v.limitMsg = desired, "DesiredWithinRange", "the desired count is within the acceptable range"
	highest := max(current, m.fastest(now, current, b.behavior))
	lowest := min(current, m.slowest(now, current, b.behavior))
	switch {
	case desired > current && b.most > highest && desired > highest:
		v.replicas, v.limitReason, v.limitMsg = highest, "ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate"
	case desired > b.most:
		v.replicas, v.limitReason, v.limitMsg = b.most, "TooManyReplicas", "the desired replica count is more than the maximum replica count"
	case desired < current && b.least < lowest && desired < lowest:
		v.replicas, v.limitReason, v.limitMsg = lowest, "ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate"
	case desired < b.least:
		v.replicas, v.limitReason, v.limitMsg = b.least, "TooFewReplicas", "the desired replica count is less than the minimum replica count"
	}
}

// fastest is how many replicas there may be at most by the policies for more. Without any the number may double, and
// four are always fine.
func (m *memory) fastest(now time.Time, current int32, b *autoscalingv2.HorizontalPodAutoscalerBehavior) int32 {
	if b == nil || b.ScaleUp == nil {
		return max(2*min(current, math.MaxInt32/2), 4)
	}
	return m.choose(now, current, b.ScaleUp, func(start int64, p autoscalingv2.HPAScalingPolicy) int64 {
		if p.Type == autoscalingv2.PodsScalingPolicy {
			return start + int64(p.Value)
		}
		return int64(math.Ceil(float64(start) * (1 + float64(p.Value)/100)))
	}, false)
}

// slowest is how few there may be at least by the policies for fewer.
func (m *memory) slowest(now time.Time, current int32, b *autoscalingv2.HorizontalPodAutoscalerBehavior) int32 {
	if b == nil || b.ScaleDown == nil {
		return 0
	}
	return m.choose(now, current, b.ScaleDown, func(start int64, p autoscalingv2.HPAScalingPolicy) int64 {
		if p.Type == autoscalingv2.PodsScalingPolicy {
			return start - int64(p.Value)
		}
		return int64(float64(start) * (1 - float64(p.Value)/100))
	}, true)
}

// choose is what the policy allows that the rules choose: the one of the most change, of the least, or none.
func (m *memory) choose(now time.Time, current int32, rules *autoscalingv2.HPAScalingRules, allow func(int64, autoscalingv2.HPAScalingPolicy) int64, down bool) int32 {
	choice := autoscalingv2.MaxChangePolicySelect
	if rules.SelectPolicy != nil {
		choice = *rules.SelectPolicy
	}
	if choice == autoscalingv2.DisabledPolicySelect || len(rules.Policies) == 0 {
		return current
	}
	var all []int64
	for _, p := range rules.Policies {
		period := time.Duration(p.PeriodSeconds) * time.Second
		all = append(all, allow(int64(current)-sum(m.ups, now, period)+sum(m.downs, now, period), p))
	}
	// The most change is the highest number upwards and the lowest downwards.
	n := slices.Max(all)
	if (choice == autoscalingv2.MinChangePolicySelect) != down {
		n = slices.Min(all)
	}
	return int32(min(max(n, 0), math.MaxInt32))
}

func sum(all []noted, now time.Time, within time.Duration) int64 {
	n := int64(0)
	for _, c := range all {
		if now.Sub(c.at) < within {
			n += int64(c.n)
		}
	}
	return n
}
