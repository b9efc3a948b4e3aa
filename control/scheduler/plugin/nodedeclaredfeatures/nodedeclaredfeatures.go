// Package nodedeclaredfeatures keeps pods off nodes that do not declare the features that they need.
package nodedeclaredfeatures

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/version"
	ndf "k8s.io/component-helpers/nodedeclaredfeatures"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/plugin"
)

// Name is the plugin's in configurations.
const Name = "NodeDeclaredFeatures"

const (
	reason              = "node(s) didn't match Pod's required features"
	key    fwk.StateKey = "PreFilter" + Name
)

// release is the version of Kubernetes whose nodes need not declare what all of them have: that of our libraries.
const release = "1.37.0"

type declared struct {
	features *ndf.Framework
	release  *version.Version
}

// needed are the features that a pod cannot do without.
type needed struct {
	features ndf.FeatureSet
}

// Clone is itself: it does not change.
func (n *needed) Clone() fwk.StateData { return n }

// New makes the plugin.
func New(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
	v, err := version.Parse(release)
	if err != nil {
		return nil, fmt.Errorf("read release %s: %w", release, err)
	}
	// The set of a node comes from the same framework: its bits are numbered by it.
	return &declared{ndf.DefaultFramework, v}, nil
}

// Name is Kubernetes' name of the plugin.
func (*declared) Name() string { return Name }

func (d *declared) need(pod *corev1.Pod) (ndf.FeatureSet, error) {
	// The pod has no status that counts before a node has it.
	set, err := d.features.InferForPodScheduling(&ndf.PodInfo{Spec: &pod.Spec}, d.release)
	if err != nil {
		return set, fmt.Errorf("infer features of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return set, nil
}

// EventsToRegister has pods tried again when nodes declare more, or the pod needs less.
func (d *declared) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		plugin.OnNode(fwk.Add|fwk.UpdateNodeDeclaredFeature, plugin.WhenNodeSuits(d.suits)),
		plugin.OnItself(fwk.Update, d.changed),
	}, nil
}

func (d *declared) suits(pod *corev1.Pod, node *corev1.Node) bool {
	need, err := d.need(pod)
	if err != nil {
		return true // the next try says what is wrong
	}
	match, err := d.features.MatchNode(need, node)
	return err != nil || match.IsMatch
}

func (d *declared) changed(_ klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
	was, is, err := plugin.Objects[*corev1.Pod](before, after)
	if err != nil {
		return fwk.Queue, err
	}
	if was == nil || is == nil || is.UID != pod.UID {
		return fwk.QueueSkip, nil
	}
	needed, err := d.need(was)
	if err != nil {
		return fwk.Queue, err
	}
	needs, err := d.need(is)
	if err != nil {
		return fwk.Queue, err
	}
	if needs.Equal(needed) {
		return fwk.QueueSkip, nil
	}
	return fwk.Queue, nil
}

// PreFilter infers what the pod needs; most need nothing.
func (d *declared) PreFilter(
	_ context.Context, state fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo,
) (*fwk.PreFilterResult, *fwk.Status) {
	need, err := d.need(pod)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	if need.IsEmpty() {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	state.Write(key, &needed{need})
	return nil, nil
}

// PreFilterExtensions are none: pods do not change what nodes declare.
func (*declared) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter takes nodes that declare all of it.
func (*declared) Filter(_ context.Context, state fwk.CycleState, _ *corev1.Pod, info fwk.NodeInfo) *fwk.Status {
	n, err := plugin.Read[*needed](state, key)
	if err != nil {
		return fwk.AsStatus(err)
	}
	match, err := n.features.IsSubset(info.GetNodeDeclaredFeatures())
	if err != nil {
		return fwk.AsStatus(fmt.Errorf("compare features of node %s: %w", info.Node().Name, err))
	}
	if !match {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reason)
	}
	return nil
}

// SignPod says what of a pod counts here.
func (d *declared) SignPod(_ context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	need, err := d.need(pod)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	return []fwk.SignFragment{{Key: fwk.FeaturesSignerName, Value: need.String()}}, nil
}
