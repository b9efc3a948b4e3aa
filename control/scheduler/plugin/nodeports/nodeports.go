// Package nodeports keeps pods off nodes where others have the host ports that they ask for.
package nodeports

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/plugin"
)

// Name is the plugin's in configurations.
const Name = "NodePorts"

const (
	reason              = "node(s) didn't have free ports for the requested pod ports"
	key    fwk.StateKey = "PreFilter" + Name
)

type nodePorts struct{}

// wanted are the host ports that a pod asks for.
type wanted []corev1.ContainerPort

// Clone is itself: it does not change.
func (w wanted) Clone() fwk.StateData { return w }

// New makes the plugin.
func New(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
	return nodePorts{}, nil
}

// Name is Kubernetes' name of the plugin.
func (nodePorts) Name() string { return Name }

// EventsToRegister has pods tried again when a pod that had their ports goes, or a node comes.
func (nodePorts) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		plugin.OnAssigned(fwk.Delete, freed),
		// Whether somebody has the ports of a new node already, only trying tells: it has no pods that we know of.
		plugin.OnNode(fwk.Add, nil),
	}, nil
}

// freed queues a pod whose ports one that goes has had.
func freed(_ klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
	gone, _, err := plugin.Objects[*corev1.Pod](before, after)
	if err != nil {
		return fwk.Queue, err
	}
	if gone == nil || gone.Spec.NodeName == "" {
		return fwk.QueueSkip, nil
	}
	had := fwk.HostPortInfo{}
	for _, p := range portsOf(gone) {
		had.Add(p.HostIP, string(p.Protocol), p.HostPort)
	}
	if conflict(portsOf(pod), had) {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}

// PreFilter collects the ports; most pods have none.
func (nodePorts) PreFilter(
	_ context.Context, state fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo,
) (*fwk.PreFilterResult, *fwk.Status) {
	w := portsOf(pod)
	if len(w) == 0 {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	state.Write(key, w)
	return nil, nil
}

// PreFilterExtensions are none: the ports in use are in the information of nodes.
func (nodePorts) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter takes nodes where the ports are free.
func (nodePorts) Filter(_ context.Context, state fwk.CycleState, _ *corev1.Pod, info fwk.NodeInfo) *fwk.Status {
	w, err := plugin.Read[wanted](state, key)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if conflict(w, info.GetUsedPorts()) {
		return fwk.NewStatus(fwk.Unschedulable, reason)
	}
	return nil
}

// SignPod says what of a pod counts here. A port's number alone, which Kubernetes signs, is not all: a node that has
// it free for TCP may not for UDP, nor for another address.
func (nodePorts) SignPod(_ context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	w := portsOf(pod)
	signed := make([]string, len(w))
	for i := range w {
		signed[i] = fmt.Sprintf("%s/%s/%d", w[i].HostIP, w[i].Protocol, w[i].HostPort)
	}
	slices.Sort(signed)
	return []fwk.SignFragment{{Key: fwk.HostPortsSignerName, Value: signed}}, nil
}

// portsOf are the host ports of the containers that run as long as the pod does.
func portsOf(pod *corev1.Pod) wanted {
	var w wanted
	add := func(c *corev1.Container) {
		for _, p := range c.Ports {
			if p.HostPort > 0 {
				w = append(w, p)
			}
		}
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return w
}

func conflict(w wanted, used fwk.HostPortInfo) bool {
	for i := range w {
		if used.CheckConflict(w[i].HostIP, string(w[i].Protocol), w[i].HostPort) {
			return true
		}
	}
	return false
}
