package noderesourcesfit

import (
	"context"
	"math"

	corev1 "k8s.io/api/core/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/plugin"
	"github.com/berth-node/berth/control/scheduler/plugin/resources"
)

// strategy is how the use of resources comes to a score.
type strategy struct {
	gauge   resources.Gauge
	weights []int64
	rate    func(used, allocatable int64) int64
	// shaped is RequestedToCapacityRatio: what scores nothing has no weight, and the mean is rounded, not cut off.
	shaped bool
}

// newStrategy reads what was checked and has its defaults.
func newStrategy(s *configv1.ScoringStrategy) strategy {
	st := strategy{gauge: resources.NewGauge(s.Resources, false), weights: make([]int64, len(s.Resources))}
	for i := range s.Resources {
		st.weights[i] = s.Resources[i].Weight
	}
	switch s.Type {
	case configv1.MostAllocated:
		st.rate = most
	case configv1.RequestedToCapacityRatio:
		st.rate, st.shaped = shaped(s.RequestedToCapacityRatio.Shape), true
	default:
		st.rate = least
	}
	return st
}

func least(used, allocatable int64) int64 {
	if used > allocatable {
		return 0
	}
	return (allocatable - used) * fwk.MaxScore / allocatable
}

// most cuts off at all of it: containers that ask for nothing count the least, which may come to more than there is.
func most(used, allocatable int64) int64 {
	return min(used, allocatable) * fwk.MaxScore / allocatable
}

func shaped(shape resources.Shape) func(used, allocatable int64) int64 {
	return func(used, allocatable int64) int64 {
		return shape.At(min(used, allocatable) * 100 / allocatable)
	}
}

// score is of a node with the pod on it.
func (s *strategy) score(node resources.Node, pod resources.Amounts) int64 {
	sum, weight := int64(0), int64(0)
	for i := range pod {
		allocatable, used := node.At(i, pod)
		if allocatable == 0 {
			continue
		}
		r := s.rate(resources.With(used, pod[i]), allocatable)
		if s.shaped && r <= 0 {
			continue
		}
		sum += r * s.weights[i]
		weight += s.weights[i]
	}
	switch {
	case weight == 0:
		return 0
	case s.shaped:
		return int64(math.Round(float64(sum) / float64(weight)))
	}
	return sum / weight
}

// PreScore sums up what the pod asks for, in the order of the strategy.
func (f *fit) PreScore(_ context.Context, state fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	state.Write(scoreKey, f.strategy.gauge.Pod(pod))
	return nil
}

// Score is the strategy's.
func (f *fit) Score(_ context.Context, state fwk.CycleState, _ *corev1.Pod, info fwk.NodeInfo) (int64, *fwk.Status) {
	pod, err := plugin.Read[resources.Amounts](state, scoreKey)
	if err != nil {
		return 0, fwk.AsStatus(err)
	}
	return f.strategy.score(f.strategy.gauge.Node(info), pod), nil
}

// ScoreExtensions are none: the scale is absolute.
func (*fit) ScoreExtensions() fwk.ScoreExtensions { return nil }
