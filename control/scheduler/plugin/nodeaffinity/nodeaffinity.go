// Package nodeaffinity keeps pods on nodes that their node selector and node affinity name, and those that the
// scheduler's configuration adds.
package nodeaffinity

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/plugin"
)

// Name is the plugin's in configurations.
const Name = "NodeAffinity"

const (
	reasonPod      = "node(s) didn't match Pod's node affinity/selector"
	reasonEnforced = "node(s) didn't match scheduler-enforced node affinity"
	reasonConflict = "pod affinity terms conflict"
)

const (
	filterKey fwk.StateKey = "PreFilter" + Name
	scoreKey  fwk.StateKey = "PreScore" + Name
)

type affinity struct {
	added     *nodeaffinity.NodeSelector             // nil if nothing is
	preferred *nodeaffinity.PreferredSchedulingTerms // nil if nothing is
}

// required is what a pod demands of nodes, parsed.
type required struct {
	nodes nodeaffinity.RequiredNodeAffinity
}

// Clone is itself: it does not change.
func (r *required) Clone() fwk.StateData { return r }

// wishes are what a pod would like of nodes, parsed; nil if nothing.
type wishes struct {
	terms *nodeaffinity.PreferredSchedulingTerms
}

// Clone is itself: it does not change.
func (w *wishes) Clone() fwk.StateData { return w }

// New makes the plugin.
func New(_ context.Context, o runtime.Object, _ fwk.Handle) (fwk.Plugin, error) {
	args, err := plugin.Args[configv1.NodeAffinityArgs](o)
	if err != nil {
		return nil, err
	}
	a := &affinity{}
	if args.AddedAffinity == nil {
		return a, nil
	}
	path := field.NewPath("addedAffinity")
	if ns := args.AddedAffinity.RequiredDuringSchedulingIgnoredDuringExecution; ns != nil {
		must := path.Child("requiredDuringSchedulingIgnoredDuringExecution")
		if a.added, err = nodeaffinity.NewNodeSelector(ns, field.WithPath(must)); err != nil {
			return nil, err
		}
	}
	if terms := args.AddedAffinity.PreferredDuringSchedulingIgnoredDuringExecution; len(terms) > 0 {
		like := path.Child("preferredDuringSchedulingIgnoredDuringExecution")
		if a.preferred, err = nodeaffinity.NewPreferredSchedulingTerms(terms, field.WithPath(like)); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// Name is Kubernetes' name of the plugin.
func (*affinity) Name() string { return Name }

// EventsToRegister has pods tried again when a node gets what they want.
func (a *affinity) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{plugin.OnNode(fwk.Add|fwk.UpdateNodeLabel, plugin.WhenNodeSuits(a.suits))}, nil
}

func (a *affinity) suits(pod *corev1.Pod, node *corev1.Node) bool {
	if a.added != nil && !a.added.Match(node) {
		return false
	}
	ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
	return ok || err != nil // the next try says what is wrong
}

// PreFilter parses what the pod demands once for all nodes. One that names its nodes needs no other looked at.
func (a *affinity) PreFilter(
	_ context.Context, state fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo,
) (*fwk.PreFilterResult, *fwk.Status) {
	terms, demands := requiredTerms(pod)
	if a.added == nil && !demands && len(pod.Spec.NodeSelector) == 0 {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	state.Write(filterKey, &required{nodeaffinity.GetRequiredNodeAffinity(pod)})
	if len(terms) == 0 {
		return nil, nil
	}
	names := sets.New[string]()
	for i := range terms {
		some, named := namesOf(&terms[i])
		if !named {
			return nil, nil // this term takes any name, and one term is enough
		}
		names = names.Union(some)
	}
	if names.Len() == 0 {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reasonConflict)
	}
	return &fwk.PreFilterResult{NodeNames: names}, nil
}

func requiredTerms(pod *corev1.Pod) ([]corev1.NodeSelectorTerm, bool) {
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil, false
	}
	return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms, true
}

// namesOf are the nodes that a term names by its fields, and whether it does: fields of one term must all match.
func namesOf(term *corev1.NodeSelectorTerm) (names sets.Set[string], named bool) {
	for i := range term.MatchFields {
		r := &term.MatchFields[i]
		if r.Key != metadataName || r.Operator != corev1.NodeSelectorOpIn {
			continue
		}
		these := sets.New(r.Values...)
		if named {
			these = names.Intersection(these)
		}
		names, named = these, true
	}
	return names, named
}

const metadataName = "metadata.name"

// PreFilterExtensions are none: pods do not change nodes.
func (*affinity) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter takes nodes that the configuration and the pod agree on.
func (a *affinity) Filter(_ context.Context, state fwk.CycleState, pod *corev1.Pod, info fwk.NodeInfo) *fwk.Status {
	node := info.Node()
	if a.added != nil && !a.added.Match(node) {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reasonEnforced)
	}
	r, err := plugin.Read[*required](state, filterKey)
	if err != nil {
		return fwk.AsStatus(err)
	}
	ok, err := r.nodes.Match(node)
	if err != nil {
		return fwk.AsStatus(fmt.Errorf("match node affinity of pod %s/%s: %w", pod.Namespace, pod.Name, err))
	}
	if !ok {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reasonPod)
	}
	return nil
}

// PreScore parses what the pod would like.
func (a *affinity) PreScore(_ context.Context, state fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	w := &wishes{}
	if p := pod.Spec.Affinity; p != nil && p.NodeAffinity != nil {
		if terms := p.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution; len(terms) > 0 {
			var err error
			if w.terms, err = nodeaffinity.NewPreferredSchedulingTerms(terms, field.WithPath(preferredPath())); err != nil {
				return fwk.AsStatus(err)
			}
		}
	}
	if w.terms == nil && a.preferred == nil {
		return fwk.NewStatus(fwk.Skip)
	}
	state.Write(scoreKey, w)
	return nil
}

func preferredPath() *field.Path {
	return field.NewPath("spec", "affinity", "nodeAffinity", "preferredDuringSchedulingIgnoredDuringExecution")
}

// Score adds the weights of the wishes that a node fulfils.
func (a *affinity) Score(_ context.Context, state fwk.CycleState, _ *corev1.Pod, info fwk.NodeInfo) (int64, *fwk.Status) {
	w, err := plugin.Read[*wishes](state, scoreKey)
	if err != nil {
		return 0, fwk.AsStatus(err)
	}
	sum := int64(0)
	if a.preferred != nil {
		sum += a.preferred.Score(info.Node())
	}
	if w.terms != nil {
		sum += w.terms.Score(info.Node())
	}
	return sum, nil
}

// ScoreExtensions has the node with the most weight be the best.
func (*affinity) ScoreExtensions() fwk.ScoreExtensions { return plugin.Ascending{} }

// SignPod says what of a pod counts here.
func (*affinity) SignPod(_ context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	signed, err := fwk.NodeAffinitySigner(pod)
	if err != nil {
		return nil, fwk.AsStatus(fmt.Errorf("sign node affinity of pod %s/%s: %w", pod.Namespace, pod.Name, err))
	}
	return []fwk.SignFragment{
		{Key: fwk.NodeAffinitySignerName, Value: signed},
		{Key: fwk.NodeSelectorSignerName, Value: pod.Spec.NodeSelector},
	}, nil
}
