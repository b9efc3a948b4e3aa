// Package nodeunschedulable keeps pods off cordoned nodes, but those that tolerate it.
package nodeunschedulable

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/plugin"
)

// Name is the plugin's in configurations.
const Name = "NodeUnschedulable"

const reason = "node(s) were unschedulable"

type nodeUnschedulable struct{}

// New makes the plugin.
func New(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
	return nodeUnschedulable{}, nil
}

// Name is Kubernetes' name of the plugin.
func (nodeUnschedulable) Name() string { return Name }

// EventsToRegister has pods tried again when a node is uncordoned, or they come to tolerate it.
func (nodeUnschedulable) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		plugin.OnNode(fwk.Add|fwk.UpdateNodeTaint, plugin.WhenNodeSuits(suits)),
		plugin.OnItself(fwk.UpdatePodToleration, plugin.WhenPodChanges(func(was, is *corev1.Pod) bool {
			return tolerates(is) && !tolerates(was)
		})),
	}, nil
}

// Filter takes nodes that are not cordoned.
func (nodeUnschedulable) Filter(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, info fwk.NodeInfo) *fwk.Status {
	if suits(pod, info.Node()) {
		return nil
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reason)
}

// SignPod says what of a pod counts here.
func (nodeUnschedulable) SignPod(_ context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	return []fwk.SignFragment{{Key: fwk.TolerationsSignerName, Value: fwk.TolerationsSigner(pod)}}, nil
}

func suits(pod *corev1.Pod, node *corev1.Node) bool {
	return !node.Spec.Unschedulable || tolerates(pod)
}

// tolerates asks about the taint that a cordoned node has, or gets in a moment.
func tolerates(pod *corev1.Pod) bool {
	cordoned := corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
	return corev1helpers.TolerationsTolerateTaint(klog.Background(), pod.Spec.Tolerations, &cordoned, false)
}
