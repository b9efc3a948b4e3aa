// Package schedulinggates keeps pods out of the queue as long as they have scheduling gates.
package schedulinggates

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/plugin"
)

// Name is the plugin's in configurations.
const Name = "SchedulingGates"

type schedulingGates struct{}

// New makes the plugin.
func New(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
	return schedulingGates{}, nil
}

// Name is Kubernetes' name of the plugin.
func (schedulingGates) Name() string { return Name }

// PreEnqueue lets pods without gates in.
func (schedulingGates) PreEnqueue(_ context.Context, pod *corev1.Pod) *fwk.Status {
	if len(pod.Spec.SchedulingGates) == 0 {
		return nil
	}
	names := make([]string, 0, len(pod.Spec.SchedulingGates))
	for _, g := range pod.Spec.SchedulingGates {
		names = append(names, g.Name)
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("waiting for scheduling gates: %v", names))
}

// EventsToRegister has a pod let in when its last gate is gone.
func (schedulingGates) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		plugin.OnItself(fwk.UpdatePodSchedulingGatesEliminated, plugin.WhenPodChanges(func(_, is *corev1.Pod) bool {
			return len(is.Spec.SchedulingGates) == 0
		})),
	}, nil
}
