// Package tainttoleration keeps pods off nodes whose taints they do not tolerate, and away from those whose taints they
// would rather not meet.
package tainttoleration

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
const Name = "TaintToleration"

const (
	reason              = "node(s) had untolerated taint(s)"
	key    fwk.StateKey = "PreScore" + Name
)

type taintToleration struct{}

// preferences are the tolerations of a pod that count for taints with PreferNoSchedule.
type preferences []corev1.Toleration

// Clone is itself: it does not change.
func (p preferences) Clone() fwk.StateData { return p }

// New makes the plugin.
func New(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
	return taintToleration{}, nil
}

// Name is Kubernetes' name of the plugin.
func (taintToleration) Name() string { return Name }

// EventsToRegister has pods tried again when taints go, or tolerations come.
func (taintToleration) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		plugin.OnNode(fwk.Add|fwk.UpdateNodeTaint, plugin.WhenNodeSuits(suits)),
		// Which node it now suits, only trying tells.
		plugin.OnItself(fwk.UpdatePodToleration, plugin.WhenPodChanges(func(_, _ *corev1.Pod) bool { return true })),
	}, nil
}

// Filter takes nodes all of whose taints are tolerated.
func (taintToleration) Filter(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, info fwk.NodeInfo) *fwk.Status {
	if suits(pod, info.Node()) {
		return nil
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reason)
}

func suits(pod *corev1.Pod, node *corev1.Node) bool {
	for i := range node.Spec.Taints {
		t := &node.Spec.Taints[i]
		keeps := t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
		if keeps && !tolerated(pod.Spec.Tolerations, t) {
			return false
		}
	}
	return true
}

func tolerated(tolerations []corev1.Toleration, t *corev1.Taint) bool {
	return corev1helpers.TolerationsTolerateTaint(klog.Background(), tolerations, t, false)
}

// PreScore chooses the tolerations that count.
func (taintToleration) PreScore(_ context.Context, state fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	var p preferences
	for _, t := range pod.Spec.Tolerations {
		// One without effect tolerates every effect.
		if t.Effect == "" || t.Effect == corev1.TaintEffectPreferNoSchedule {
			p = append(p, t)
		}
	}
	state.Write(key, p)
	return nil
}

// Score counts the taints that the pod would rather not meet.
func (taintToleration) Score(_ context.Context, state fwk.CycleState, _ *corev1.Pod, info fwk.NodeInfo) (int64, *fwk.Status) {
	taints := info.Node().Spec.Taints
	if len(taints) == 0 {
		return 0, nil
	}
	p, err := plugin.Read[preferences](state, key)
	if err != nil {
		return 0, fwk.AsStatus(err)
	}
	n := int64(0)
	for i := range taints {
		if taints[i].Effect == corev1.TaintEffectPreferNoSchedule && !tolerated(p, &taints[i]) {
			n++
		}
	}
	return n, nil
}

// ScoreExtensions has the node with the fewest be the best.
func (taintToleration) ScoreExtensions() fwk.ScoreExtensions { return plugin.Descending{} }

// SignPod says what of a pod counts here.
func (taintToleration) SignPod(_ context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	return []fwk.SignFragment{{Key: fwk.TolerationsSignerName, Value: fwk.TolerationsSigner(pod)}}, nil
}
