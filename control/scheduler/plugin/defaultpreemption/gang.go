package defaultpreemption

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

var _ fwk.PodGroupPostFilterPlugin = (*Plugin)(nil)

// PodGroupPostFilter implements [fwk.PodGroupPostFilterPlugin]: room is made for a gang in the whole cluster, by the
// end of pods and of groups whose priority is less than the gang's.
func (p *Plugin) PodGroupPostFilter(
	ctx context.Context, _ fwk.PodGroupCycleState, group fwk.PodGroupInfo, try fwk.PodGroupSchedulingFunc,
) (*fwk.PodGroupPostFilterResult, *fwk.Status) {
	pods := group.GetUnscheduledPods()
	if why := p.gangIneligible(pods); why != "" {
		return nil, fwk.NewStatus(fwk.Unschedulable, why)
	}
	rank := int32(0)
	if pg := group.GetPodGroup(); pg != nil && pg.Spec.Priority != nil {
		rank = *pg.Spec.Priority
	}
	list, err := p.budgets.List(labels.Everything())
	if err != nil {
		return nil, fwk.AsStatus(fmt.Errorf("list disruption budgets: %w", err))
	}
	chosen, assigned, status := p.sacrifice(ctx, rank, newBudgets(list), try)
	switch {
	case status.IsError():
		return nil, status
	case !status.IsSuccess():
		return &fwk.PodGroupPostFilterResult{}, status
	}
	result := &fwk.PodGroupPostFilterResult{NominatingInfos: map[types.NamespacedName]*fwk.NominatingInfo{}}
	nodes := sets.New[string]()
	for _, a := range assigned.ProposedAssignments {
		pod := a.GetPod()
		nodes.Insert(a.GetNodeName())
		result.NominatingInfos[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}] = nominate(a.GetNodeName()).NominatingInfo
	}
	if len(chosen) > 0 {
		p.endUnits(ctx, pods, chosen, nodes)
	}
	return result, nil
}

// gangIneligible says why nothing is ended for a gang; empty: something may be.
func (p *Plugin) gangIneligible(pods []*corev1.Pod) string {
	for _, pod := range pods {
		if policy := pod.Spec.PreemptionPolicy; policy != nil && *policy == corev1.PreemptNever {
			return "not eligible due to preemptionPolicy=Never."
		}
		if p.endingOn(pod) || len(p.ending.left(pod.UID, p.handle.SnapshotSharedLister().NodeInfos())) > 0 {
			return "not eligible due to a terminating pod on the nominated node."
		}
	}
	return ""
}

// sacrifice finds what has to end so that a gang gets nodes. All that matters less is taken away; what may stay for the
// nodes that are found then is put back, the more important first, those before that whose budget allows no disruption.
func (p *Plugin) sacrifice(
	ctx context.Context, rank int32, all budgets, try fwk.PodGroupSchedulingFunc,
) (chosen []*unit, assigned *fwk.PodGroupAssignments, status *fwk.Status) {
	snapshot := p.handle.MutableSnapshotSharedLister()
	nodes, err := snapshot.NodeInfos().List()
	if err != nil {
		return nil, nil, fwk.AsStatus(fmt.Errorf("list nodes: %w", err))
	}
	units := p.groups.units(nodes, rank)
	if len(units) == 0 {
		return nil, nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "No preemption victims found for incoming pod group")
	}
	if err := snapshot.StartMutations(); err != nil {
		return nil, nil, fwk.AsStatus(err)
	}
	defer func() {
		if err := snapshot.EndMutations(); err != nil {
			status = fwk.AsStatus(err)
		}
	}()
	for _, u := range units {
		if err := u.move(snapshot, false); err != nil {
			return nil, nil, fwk.AsStatus(err)
		}
	}
	if assigned, status = try(ctx); !status.IsSuccess() {
		return nil, nil, status
	}
	slices.SortFunc(units, byWeight)
	violating, others := unitsByBudget(units, all)
	far := distance(assigned)
	for _, u := range slices.Concat(violating, others) {
		if ctx.Err() != nil {
			return nil, nil, fwk.AsStatus(context.Cause(ctx))
		}
		if err := u.move(snapshot, true); err != nil {
			return nil, nil, fwk.AsStatus(err)
		}
		if far(u) {
			continue
		}
		_, status := try(ctx)
		if status.IsSuccess() {
			continue
		}
		if status.IsError() {
			return nil, nil, status
		}
		if err := u.move(snapshot, false); err != nil {
			return nil, nil, fwk.AsStatus(err)
		}
		chosen = append(chosen, u)
	}
	slices.SortFunc(chosen, byWeight)
	return chosen, assigned, nil
}

// distance says of units that they do not matter to pods on the nodes that were found for these: they are on others,
// and nobody asks for more than the node itself.
func distance(assigned *fwk.PodGroupAssignments) func(*unit) bool {
	nodes, near := sets.New[string](), false
	for _, a := range assigned.ProposedAssignments {
		nodes.Insert(a.GetNodeName())
		spec := &a.GetPod().Spec
		// A claim may be one that a pod elsewhere has alone.
		near = near || len(spec.TopologySpreadConstraints) > 0 || len(spec.Volumes) > 0 || len(spec.ResourceClaims) > 0 ||
			spec.Affinity != nil && (spec.Affinity.PodAffinity != nil || spec.Affinity.PodAntiAffinity != nil)
	}
	return func(u *unit) bool {
		return !near && !slices.ContainsFunc(u.pods, func(p fwk.PodInfo) bool {
			return nodes.Has(p.GetPod().Spec.NodeName) || len(p.GetRequiredAntiAffinityTerms()) > 0
		})
	}
}

// move takes a unit away from its nodes, or puts it back.
func (u *unit) move(snapshot fwk.MutableSnapshotSharedLister, back bool) error {
	for _, info := range u.pods {
		pod := info.GetPod()
		var err error
		if back {
			err = snapshot.AddPod(info, pod.Spec.NodeName)
		} else {
			err = snapshot.RemovePod(klog.Logger{}, pod, pod.Spec.NodeName)
		}
		if err != nil {
			return fmt.Errorf("look for room: %w", err)
		}
	}
	return nil
}

// unitsByBudget tells units whose end breaks a budget, if all before them end, too.
func unitsByBudget(all []*unit, by budgets) (violating, others []*unit) {
	var pods []fwk.PodInfo
	for _, u := range all {
		pods = append(pods, u.pods...)
	}
	breaking, _ := by.part(pods)
	breaks := sets.New[types.UID]()
	for _, p := range breaking {
		breaks.Insert(p.GetPod().UID)
	}
	for _, u := range all {
		if slices.ContainsFunc(u.pods, func(p fwk.PodInfo) bool { return breaks.Has(p.GetPod().UID) }) {
			violating = append(violating, u)
		} else {
			others = append(others, u)
		}
	}
	return violating, others
}

// endUnits has what was chosen end for a gang, beside the scheduler's loop.
func (p *Plugin) endUnits(ctx context.Context, gang []*corev1.Pod, chosen []*unit, nodes sets.Set[string]) {
	var victims []*corev1.Pod
	for _, u := range chosen {
		for _, info := range u.pods {
			victims = append(victims, info.GetPod())
		}
	}
	p.end(ctx, gang, victims, sets.List(nodes))
}
