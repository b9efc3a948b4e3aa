// Package defaultbinder is the plugin DefaultBinder: a pod is bound to its node by one write.
package defaultbinder

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	fwk "k8s.io/kube-scheduler/framework"
)

// Name is the plugin's.
const Name = "DefaultBinder"

// Plugin binds pods.
type Plugin struct{ client kubernetes.Interface }

var (
	_ fwk.BindPlugin = (*Plugin)(nil)
	_ fwk.SignPlugin = (*Plugin)(nil)
)

// New makes the plugin.
func New(_ context.Context, _ runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	return &Plugin{h.ClientSet()}, nil
}

// Name implements [fwk.Plugin].
func (*Plugin) Name() string { return Name }

// EventsToRegister implements [fwk.EnqueueExtensions]: no pod is rejected here, a binding fails or does not.
func (*Plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) { return nil, nil }

// SignPod implements [fwk.SignPlugin]: all pods are bound in the same way.
func (*Plugin) SignPod(context.Context, *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	return nil, nil
}

// Bind implements [fwk.BindPlugin]. The UID is in it so that a pod of the same name that has come since is not bound.
func (p *Plugin) Bind(ctx context.Context, _ fwk.CycleState, pod *corev1.Pod, node string) *fwk.Status {
	binding := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}
	if err := p.client.CoreV1().Pods(pod.Namespace).Bind(ctx, binding, metav1.CreateOptions{}); err != nil {
		return fwk.AsStatus(fmt.Errorf("bind pod to node %q: %w", node, err))
	}
	return nil
}
