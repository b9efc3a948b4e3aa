// Package nodename keeps a pod that names its node on that node.
package nodename

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/plugin"
)

// Name is the plugin's in configurations.
const Name = "NodeName"

const reason = "node(s) didn't match the requested node name"

type nodeName struct{}

// New makes the plugin.
func New(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
	return nodeName{}, nil
}

// Name is Kubernetes' name of the plugin.
func (nodeName) Name() string { return Name }

// EventsToRegister has pods tried again when their node comes.
func (nodeName) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{plugin.OnNode(fwk.Add, plugin.WhenNodeSuits(suits))}, nil
}

// Filter takes the named node, and any if none is named.
func (nodeName) Filter(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, info fwk.NodeInfo) *fwk.Status {
	if suits(pod, info.Node()) {
		return nil
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reason)
}

// SignPod says what of a pod counts here.
func (nodeName) SignPod(_ context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	return []fwk.SignFragment{{Key: fwk.NodeNameSignerName, Value: pod.Spec.NodeName}}, nil
}

func suits(pod *corev1.Pod, node *corev1.Node) bool {
	return pod.Spec.NodeName == "" || pod.Spec.NodeName == node.Name
}
