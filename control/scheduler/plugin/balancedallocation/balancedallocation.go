// Package balancedallocation favours nodes whose resources a pod brings to a like use.
package balancedallocation

import (
	"context"
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/plugin"
	"github.com/berth-node/berth/control/scheduler/plugin/resources"
)

// Name is the plugin's in configurations.
const Name = "NodeResourcesBalancedAllocation"

const key fwk.StateKey = "PreScore" + Name

type balance struct {
	gauge resources.Gauge
}

// New makes the plugin.
func New(_ context.Context, o runtime.Object, _ fwk.Handle) (fwk.Plugin, error) {
	args, err := plugin.Args[configv1.NodeResourcesBalancedAllocationArgs](o)
	if err != nil {
		return nil, err
	}
	specs := resources.Defaults(args.Resources)
	if errs := resources.CheckSpecs(specs, field.NewPath("resources"), 1); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	return &balance{resources.NewGauge(specs, true)}, nil
}

// Name is Kubernetes' name of the plugin.
func (*balance) Name() string { return Name }

// PreScore sums up what the pod asks for. One that asks for nothing balances nothing: the same node would be the best
// for any number of them.
func (b *balance) PreScore(_ context.Context, state fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	a := b.gauge.Pod(pod)
	if a.None() {
		return fwk.NewStatus(fwk.Skip)
	}
	state.Write(key, a)
	return nil
}

// Score compares the node with the pod to the node without it: 75 if nothing changes, 100 at best, 50 at worst.
func (b *balance) Score(_ context.Context, state fwk.CycleState, _ *corev1.Pod, info fwk.NodeInfo) (int64, *fwk.Status) {
	pod, err := plugin.Read[resources.Amounts](state, key)
	if err != nil {
		return 0, fwk.AsStatus(err)
	}
	var with, without spread
	node := b.gauge.Node(info)
	for i := range pod {
		allocatable, used := node.At(i, pod)
		if allocatable == 0 {
			continue
		}
		without.add(fraction(used, allocatable))
		with.add(fraction(resources.With(used, pod[i]), allocatable))
	}
	return fwk.MaxScore/2 + (fwk.MaxScore/2+with.score()-without.score())/2, nil
}

// ScoreExtensions are none: the scale is absolute.
func (*balance) ScoreExtensions() fwk.ScoreExtensions { return nil }

// SignPod says what of a pod counts here.
func (*balance) SignPod(_ context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	return []fwk.SignFragment{{Key: fwk.ResourcesSignerName, Value: resources.Signed{Pod: pod}}}, nil
}

func fraction(used, of int64) float64 {
	return min(float64(used)/float64(of), 1)
}

// spread is how far apart fractions are.
type spread struct {
	n              int
	mean, sum      float64 // Welford's: the sum is of the squared distances from the mean
	first, deviate float64
}

func (s *spread) add(f float64) {
	s.n++
	if s.n == 1 {
		s.first = f
	}
	d := f - s.mean
	s.mean += d / float64(s.n)
	s.sum += d * (f - s.mean)
	s.deviate = f - s.first
}

func (s *spread) score() int64 {
	deviation := 0.0
	switch {
	case s.n == 2:
		deviation = math.Abs(s.deviate / 2) // exact, and cheap
	case s.n > 2:
		deviation = math.Sqrt(s.sum / float64(s.n))
	}
	return int64((1 - deviation) * float64(fwk.MaxScore))
}
