package profile

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/cycle"
)

// RunPreFilter has plugins look at the pod before any node. It returns the nodes to look at, nil: all, and which
// plugins have left the others out.
func (p *Profile) RunPreFilter(
	ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo,
) (result *fwk.PreFilterResult, narrowing []string, ended *fwk.Status) {
	defer took(p, "PreFilter", time.Now(), &ended)
	skip := sets.New[string]()
	state.SetSkipFilterPlugins(skip)
	for _, plugin := range p.points.preFilter {
		r, status := plugin.PreFilter(ctx, state, pod, nodes)
		switch {
		case status.IsSkip():
			skip.Insert(plugin.Name())
			continue
		case status.IsRejected():
			return nil, narrowing, status.WithPlugin(plugin.Name())
		case !status.IsSuccess():
			return nil, narrowing, failed("PreFilter", plugin, status)
		}
		if !r.AllNodes() {
			narrowing = append(narrowing, plugin.Name())
		}
		if result = result.Merge(r); !result.AllNodes() && result.NodeNames.Len() == 0 {
			return nil, narrowing, nowhere(narrowing).WithPlugin(plugin.Name())
		}
	}
	countSkipped(p, state, skip)
	return result, narrowing, nil
}

// countSkipped spares a look into a set for each plugin and node.
func countSkipped(p *Profile, state fwk.CycleState, skip sets.Set[string]) {
	s, ours := state.(*cycle.State)
	if !ours || len(p.points.filter) > 64 {
		return
	}
	mask := uint64(0)
	for i, plugin := range p.points.filter {
		if skip.Has(plugin.Name()) {
			mask |= 1 << i
		}
	}
	s.CountSkipped(mask)
}

func nowhere(narrowing []string) *fwk.Status {
	message := fmt.Sprintf("node(s) didn't satisfy plugin(s) %v simultaneously", narrowing)
	if len(narrowing) == 1 {
		message = fmt.Sprintf("node(s) didn't satisfy plugin %v", narrowing[0])
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, message)
}

// failed is the status of a plugin that could not do its part.
func failed(phase string, plugin fwk.Plugin, status *fwk.Status) *fwk.Status {
	return fwk.AsStatus(fmt.Errorf("run %s of plugin %q: %w", phase, plugin.Name(), reason(status)))
}

// reason is a status as an error, also where it has a code that the phase does not know.
func reason(status *fwk.Status) error {
	if err := status.AsError(); err != nil {
		return err
	}
	return fmt.Errorf("it has returned %s", status.Code())
}

// RunFilterPlugins implements [fwk.PluginsRunner].
func (p *Profile) RunFilterPlugins(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node fwk.NodeInfo) *fwk.Status {
	return FilterNear(ctx, p, nil, state, pod, node)
}

// FilterNear is RunFilterPlugins without those that look far.
func FilterNear(ctx context.Context, p *Profile, far *Farsight, state fwk.CycleState, pod *corev1.Pod, node fwk.NodeInfo) *fwk.Status {
	mask, counted := uint64(0), false
	if s, ours := state.(*cycle.State); ours {
		mask, counted = s.Skipped()
	}
	for i, plugin := range p.points.filter {
		if counted && mask&(1<<i) != 0 || !counted && state.GetSkipFilterPlugins().Has(plugin.Name()) || far.has(plugin) {
			continue
		}
		status := plugin.Filter(ctx, state, pod, node)
		if status.IsSuccess() {
			continue
		}
		if !status.IsRejected() {
			status = failed("Filter", plugin, status)
		}
		status.SetPlugin(plugin.Name())
		return status
	}
	return nil
}

// FilterAll is RunFilterPlugins that goes on after the first rejection, for who wants to know of all: the first status
// is that of the plugin by which the node is rejected.
func (p *Profile) FilterAll(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node fwk.NodeInfo) []*fwk.Status {
	var all []*fwk.Status
	for _, plugin := range p.points.filter {
		if state.GetSkipFilterPlugins().Has(plugin.Name()) {
			continue
		}
		if status := plugin.Filter(ctx, state, pod, node); !status.IsSuccess() {
			all = append(all, status.WithPlugin(plugin.Name()))
		}
	}
	return all
}

// FilterNominated is RunFilterPlugins with the room on the node left to those that it is kept for: pods of the same or
// more priority that others were evicted for. As they may as well not come, the pod has to suit without them, too.
func (p *Profile) FilterNominated(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node fwk.NodeInfo) *fwk.Status {
	if p.shared.Nominator.Empty() {
		return p.RunFilterPlugins(ctx, state, pod, node)
	}
	with, info, status := addNominated(p, ctx, state, pod, node)
	if !status.IsSuccess() {
		return status
	}
	if with != nil {
		if status := p.RunFilterPlugins(ctx, with, pod, info); !status.IsSuccess() {
			return status
		}
	}
	return p.RunFilterPlugins(ctx, state, pod, node)
}

// addNominated is the state and the node with the pods that it is kept for, nil: there are none.
func addNominated(p *Profile, ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node fwk.NodeInfo) (fwk.CycleState, fwk.NodeInfo, *fwk.Status) {
	var with fwk.CycleState
	var info fwk.NodeInfo
	for _, nominated := range p.shared.Nominator.NominatedPodsForNode(node.Node().Name) {
		other := nominated.GetPod()
		if priority(other) < priority(pod) || other.UID == pod.UID {
			continue
		}
		if with == nil {
			with, info = state.Clone(), node.Snapshot()
		}
		info.AddPodInfo(nominated)
		if status := p.RunPreFilterExtensionAddPod(ctx, with, pod, nominated, info); !status.IsSuccess() {
			return nil, nil, status
		}
	}
	return with, info, nil
}

func priority(pod *corev1.Pod) int32 {
	if pod.Spec.Priority != nil {
		return *pod.Spec.Priority
	}
	return 0
}

// RunPreFilterExtensionAddPod implements [fwk.PluginsRunner].
func (p *Profile) RunPreFilterExtensionAddPod(
	ctx context.Context, state fwk.CycleState, pod *corev1.Pod, other fwk.PodInfo, node fwk.NodeInfo,
) *fwk.Status {
	return extend(p, state, "PreFilterExtensionAddPod", func(e fwk.PreFilterExtensions) *fwk.Status {
		return e.AddPod(ctx, state, pod, other, node)
	})
}

// RunPreFilterExtensionRemovePod implements [fwk.PluginsRunner].
func (p *Profile) RunPreFilterExtensionRemovePod(
	ctx context.Context, state fwk.CycleState, pod *corev1.Pod, other fwk.PodInfo, node fwk.NodeInfo,
) *fwk.Status {
	return extend(p, state, "PreFilterExtensionRemovePod", func(e fwk.PreFilterExtensions) *fwk.Status {
		return e.RemovePod(ctx, state, pod, other, node)
	})
}

func extend(p *Profile, state fwk.CycleState, phase string, call func(fwk.PreFilterExtensions) *fwk.Status) *fwk.Status {
	for _, plugin := range p.points.preFilter {
		extensions := plugin.PreFilterExtensions()
		if extensions == nil || state.GetSkipFilterPlugins().Has(plugin.Name()) {
			continue
		}
		if status := call(extensions); !status.IsSuccess() {
			return failed(phase, plugin, status)
		}
	}
	return nil
}

// RunPostFilter has plugins make room for a pod that no node was found for. The first that can is the last.
func (p *Profile) RunPostFilter(
	ctx context.Context, state fwk.CycleState, pod *corev1.Pod, statuses fwk.NodeToStatusReader,
) (result *fwk.PostFilterResult, ended *fwk.Status) {
	defer took(p, "PostFilter", time.Now(), &ended)
	var reasons []string
	blamed, code := "", fwk.Unschedulable
	for _, plugin := range p.points.postFilter {
		r, status := plugin.PostFilter(ctx, state, pod, statuses)
		switch {
		case status.IsSuccess():
			return r, nil
		case !status.IsRejected():
			return nil, failed("PostFilter", plugin, status)
		case status.Code() == fwk.UnschedulableAndUnresolvable:
			return r, status.WithPlugin(plugin.Name())
		}
		if r != nil && r.Mode() != fwk.ModeNoop {
			result = r
		}
		reasons = append(reasons, status.Reasons()...)
		if blamed == "" || code == fwk.Pending {
			blamed, code = plugin.Name(), status.Code()
		}
	}
	return result, fwk.NewStatus(code, reasons...).WithPlugin(blamed)
}

// Message is what all of this comes to in Kubernetes' words.
func (r *Rejection) Message() string {
	if r.Nodes == 0 {
		return "no nodes available to schedule pods"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "0/%d nodes are available:", r.Nodes)
	if r.Before != "" {
		b.WriteString(" " + r.Before + ".")
	} else if reasons := r.reasons(); len(reasons) > 0 {
		b.WriteString(" " + strings.Join(reasons, ", ") + ".")
	}
	if r.After != "" {
		b.WriteString(" " + r.After)
	}
	return b.String()
}

// reasons are how many nodes there are of each.
func (r *Rejection) reasons() []string {
	counts := map[string]int{}
	r.Statuses.Each(func(_ string, status *fwk.Status) {
		for _, reason := range status.Reasons() {
			counts[reason]++
		}
	})
	if absent := r.Statuses.Absent(); absent != nil {
		for _, reason := range absent.Reasons() {
			counts[reason] += r.Nodes - r.Statuses.Len()
		}
	}
	all := make([]string, 0, len(counts))
	for reason, n := range counts {
		if n > 0 {
			all = append(all, fmt.Sprintf("%d %s", n, reason))
		}
	}
	slices.Sort(all)
	return all
}
