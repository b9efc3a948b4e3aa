package profile

import (
	"context"

	fwk "k8s.io/kube-scheduler/framework"
)

// MakeRoom has plugins of a profile make room for a group of pods that not enough nodes were found for. The first that
// can is the last.
func MakeRoom(
	ctx context.Context, p *Profile, state fwk.PodGroupCycleState, group fwk.PodGroupInfo, try fwk.PodGroupSchedulingFunc,
) (*fwk.PodGroupPostFilterResult, *fwk.Status) {
	var result *fwk.PodGroupPostFilterResult
	var reasons []string
	for _, plugin := range p.points.groupPostFilter {
		r, status := plugin.PodGroupPostFilter(ctx, state, group, try)
		switch {
		case status.IsSuccess():
			return r, nil
		case !status.IsRejected():
			return nil, failed("PodGroupPostFilter", plugin, status)
		case status.Code() == fwk.UnschedulableAndUnresolvable:
			return r, status.WithPlugin(plugin.Name())
		}
		if r != nil {
			result = r
		}
		reasons = append(reasons, status.Reasons()...)
	}
	return result, fwk.NewStatus(fwk.Unschedulable, reasons...)
}
