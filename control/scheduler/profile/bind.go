package profile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// maxPermit bounds how long a pod waits for a permit, whatever a plugin says.
const maxPermit = 15 * time.Minute

// RunReservePluginsReserve implements [fwk.PluginsRunner].
func (p *Profile) RunReservePluginsReserve(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node string) (ended *fwk.Status) {
	defer took(p, "Reserve", time.Now(), &ended)
	for _, plugin := range p.points.reserve {
		status := plugin.Reserve(ctx, state, pod, node)
		if status.IsRejected() {
			return status.WithPlugin(plugin.Name())
		}
		if !status.IsSuccess() {
			return failed("Reserve", plugin, status)
		}
	}
	return nil
}

// RunReservePluginsUnreserve implements [fwk.PluginsRunner].
func (p *Profile) RunReservePluginsUnreserve(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node string) {
	var ended *fwk.Status
	defer took(p, "Unreserve", time.Now(), &ended)
	for _, plugin := range slices.Backward(p.points.reserve) {
		plugin.Unreserve(ctx, state, pod, node)
	}
}

// RunPermit has plugins say whether a pod may go to its node now. Where one wants to be waited for the status is Wait,
// and [Profile.WaitOnPermit] waits.
func (p *Profile) RunPermit(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node string) (ended *fwk.Status) {
	defer took(p, "Permit", time.Now(), &ended)
	waits := map[string]time.Duration{}
	for _, plugin := range p.points.permit {
		status, timeout := plugin.Permit(ctx, state, pod, node)
		switch {
		case status.IsSuccess():
		case status.IsWait():
			waits[plugin.Name()] = min(timeout, maxPermit)
		case status.IsRejected():
			return status.WithPlugin(plugin.Name())
		default:
			return failed("Permit", plugin, status)
		}
	}
	if len(waits) == 0 {
		return nil
	}
	p.shared.Waiting.add(newWaitingPod(pod, waits))
	return fwk.NewStatus(fwk.Wait, fmt.Sprintf("one or more plugins asked to wait and no plugin rejected pod %q", pod.Name))
}

// WaitOnPermit waits until all plugins have permitted a pod that has to wait, one has rejected it, or takes too long.
func (p *Profile) WaitOnPermit(ctx context.Context, pod *corev1.Pod) *fwk.Status {
	w := p.shared.Waiting.get(pod.UID)
	if w == nil {
		return nil
	}
	defer p.shared.Waiting.remove(pod.UID)
	defer w.stop()
	select {
	case status := <-w.decided:
		return status
	case <-ctx.Done():
		return fwk.AsStatus(fmt.Errorf("wait for permit: %w", ctx.Err()))
	}
}

// RunPreBindPreFlight asks which plugins have something to do before a pod is bound. The status is Skip where none has.
func (p *Profile) RunPreBindPreFlight(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node string) (ended *fwk.Status) {
	defer took(p, "PreBindPreFlight", time.Now(), &ended)
	skip, parallel := sets.New[string](), sets.New[string]()
	state.SetSkipPreBindPlugins(skip)
	state.SetParallelPreBindPlugins(parallel)
	for _, plugin := range p.points.preBind {
		result, status := plugin.PreBindPreFlight(ctx, state, pod, node)
		if status.IsSkip() {
			skip.Insert(plugin.Name())
		} else if !status.IsSuccess() {
			return failed("PreBindPreFlight", plugin, status)
		}
		if result != nil && result.AllowParallel {
			parallel.Insert(plugin.Name())
		}
	}
	if skip.Len() == len(p.points.preBind) {
		return fwk.NewStatus(fwk.Skip)
	}
	return nil
}

// RunPreBind has plugins do what comes before a pod is bound, side by side those that follow each other and may.
func (p *Profile) RunPreBind(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node string) (ended *fwk.Status) {
	defer took(p, "PreBind", time.Now(), &ended)
	var group []fwk.PreBindPlugin
	for _, plugin := range p.points.preBind {
		parallel := state.GetParallelPreBindPlugins().Has(plugin.Name())
		if !parallel {
			if status := runPreBinds(ctx, p.log, group, state, pod, node); !status.IsSuccess() {
				return status
			}
			group = nil
		}
		if state.GetSkipPreBindPlugins().Has(plugin.Name()) {
			continue
		}
		if parallel {
			group = append(group, plugin)
			continue
		}
		if status := runPreBinds(ctx, p.log, []fwk.PreBindPlugin{plugin}, state, pod, node); !status.IsSuccess() {
			return status
		}
	}
	return runPreBinds(ctx, p.log, group, state, pod, node)
}

func runPreBinds(ctx context.Context, log *slog.Logger, group []fwk.PreBindPlugin, state fwk.CycleState, pod *corev1.Pod, node string) *fwk.Status {
	if len(group) == 0 {
		return nil
	}
	var first firstFailure
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	for _, plugin := range group {
		one := func() {
			defer func() {
				if p := recover(); p != nil {
					log.Error("plugin panics before a pod is bound", "plugin", plugin.Name(), "pod", klog.KObj(pod), "error", p, "stack", string(debug.Stack()))
					first.set(failed("PreBind", plugin, fwk.AsStatus(fmt.Errorf("panic: %v", p))))
					cancel()
				}
			}()
			status := plugin.PreBind(within, state, pod, node)
			switch {
			case status.IsSuccess():
				return
			case status.IsRejected():
				status.SetPlugin(plugin.Name())
			default:
				status = failed("PreBind", plugin, status)
			}
			first.set(status)
			cancel()
		}
		if len(group) == 1 {
			one()
		} else {
			running.Go(one)
		}
	}
	running.Wait()
	return first.status
}

// errNoBinder is returned where each plugin leaves the pod to the others.
var errNoBinder = errors.New("no plugin binds the pod")

// RunBind binds a pod by the first plugin that does.
func (p *Profile) RunBind(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node string) (ended *fwk.Status) {
	defer took(p, "Bind", time.Now(), &ended)
	for _, plugin := range p.points.bind {
		status := plugin.Bind(ctx, state, pod, node)
		switch {
		case status.IsSkip():
			continue
		case status.IsSuccess():
			return nil
		case status.IsRejected():
			return status.WithPlugin(plugin.Name())
		}
		return failed("Bind", plugin, status)
	}
	return fwk.AsStatus(errNoBinder)
}

// RunPostBind tells plugins that a pod is bound.
func (p *Profile) RunPostBind(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node string) {
	var ended *fwk.Status
	defer took(p, "PostBind", time.Now(), &ended)
	for _, plugin := range p.points.postBind {
		plugin.PostBind(ctx, state, pod, node)
	}
}
