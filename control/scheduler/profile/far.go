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
	return status != nil && slices.ContainsFunc(p.far, func(plugin Far) bool { return plugin.Name() == status.Plugin() })
}

// Farsight is the plugins of a profile that look far for one pod; nil: none does.
type Farsight struct {
	profile *Profile
	names   []string
}

// FarsightFor finds them.
func FarsightFor(p *Profile, pod *corev1.Pod, opinions bool) *Farsight {
	var names []string
	for _, plugin := range p.far {
		if plugin.LooksFar(pod, opinions) {
			names = append(names, plugin.Name())
		}
	}
	if len(names) == 0 {
		return nil
	}
	return &Farsight{p, names}
}

func (f *Farsight) has(plugin fwk.Plugin) bool {
	return f != nil && slices.Contains(f.names, plugin.Name())
}

// preScore has those that look far prepare for scores, and returns those that do not score the pod.
func (f *Farsight) preScore(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) (sets.Set[string], *fwk.Status) {
	skip := sets.New[string]()
	for _, plugin := range f.profile.points.preScore {
		if !f.has(plugin) {
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
