package profile

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
)

// Far is a plugin that looks further than at the node that it is asked about: for some pods, those on other nodes
// matter, so that what it says of a node changes while the node does not. [fwk.SignPlugin] leaves such pods out.
type Far interface {
	fwk.SignPlugin
	// SignFar is SignPod that leaves none out.
	SignFar(ctx context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status)
	// LooksFar says whether others may matter for a pod. Opinions is that pods which are for or against others have
	// come or gone.
	LooksFar(pod *corev1.Pod, opinions bool) bool
}

// Farther says whether a node was rejected by a plugin that looks far.
func Farther(p *Profile, status *fwk.Status) bool {
	return status != nil && slices.Contains(p.far, status.Plugin())
}

// mostFilters is how many plugins a set of bits has room for.
const mostFilters = 64

// Farsight is the plugins of a profile that look far for one pod.
type Farsight struct {
	profile *Profile
	filters []fwk.FilterPlugin
	places  uint64 // of these among the plugins that filter
	names   []string
}

// FarsightFor finds them; nil: none does. Not known: there are too many plugins.
func FarsightFor(p *Profile, pod *corev1.Pod, opinions bool) (f *Farsight, known bool) {
	for _, plugin := range p.plugins {
		if far, ok := plugin.(Far); ok && far.LooksFar(pod, opinions) {
			if f == nil {
				f = &Farsight{profile: p}
			}
			f.names = append(f.names, plugin.Name())
		}
	}
	if f == nil {
		return nil, true
	}
	for i, plugin := range p.points.filter {
		if f.has(plugin.Name()) {
			f.filters = append(f.filters, plugin)
			f.places |= 1 << i
		}
	}
	return f, len(p.points.filter) <= mostFilters
}

func (f *Farsight) has(name string) bool { return f != nil && slices.Contains(f.names, name) }

// FilterNear is RunFilterPlugins of those that look at nothing but the node.
func (f *Farsight) FilterNear(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node fwk.NodeInfo) *fwk.Status {
	return runFilters(ctx, f.profile, state, pod, node, f.places)
}

// preScore has those that look far prepare for scores, and returns those that do not score the pod.
func (f *Farsight) preScore(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) (sets.Set[string], *fwk.Status) {
	skip := sets.New[string]()
	for _, plugin := range f.profile.points.preScore {
		if !f.has(plugin.Name()) {
			continue
		}
		status := plugin.PreScore(ctx, state, pod, nodes)
		switch {
		case status.IsSkip():
			skip.Insert(plugin.Name())
		case !status.IsSuccess():
			return nil, failed("PreScore", plugin, status)
		}
	}
	return skip, nil
}
