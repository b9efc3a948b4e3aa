package scheduler

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/cluster"
	"github.com/berth-node/berth/control/scheduler/cycle"
	"github.com/berth-node/berth/control/scheduler/profile"
	"github.com/berth-node/berth/control/scheduler/queue"
)

// room is what plugins have made of it for a gang.
type room struct {
	result  *fwk.PodGroupPostFilterResult
	message string
}

// of is the node that a pod of the gang is to come to when others have ended. Nil: what was said of it before stands.
func (r *room) of(pod *corev1.Pod) *fwk.NominatingInfo {
	if r == nil || r.result == nil {
		return nil
	}
	if info := r.result.NominatingInfos[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}]; info != nil {
		return info
	}
	return &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride}
}

// makeRoom has plugins end others so that as many pods of a gang as are missing get nodes.
func (g gangs) makeRoom(ctx context.Context, group *schedulingv1beta1.PodGroup, all []*queue.Pod, missing int) *room {
	s := g.s
	p := s.profiles[all[0].Pod().Spec.SchedulerName]
	s.cache.Update(s.snapshot)
	v := &vision{gangs: g, missing: missing}
	for _, q := range all {
		if q.Pod().DeletionTimestamp == nil && s.cache.Pod(q.Pod().UID) == nil {
			v.pods = append(v.pods, q)
		}
	}
	if len(v.pods) < missing {
		return &room{}
	}
	within, cancel := s.search.limited(ctx, aGang)
	defer cancel()
	result, status := profile.MakeRoom(within, p, &cycle.GroupState{}, groupInfo{group, v.pods}, v.place)
	if status.IsError() {
		s.log.Warn("no room is made for a gang", "group", cache.MetaObjectToName(group), "error", status.AsError())
		return &room{}
	}
	return &room{result, status.Message()}
}

// vision finds nodes for a gang in a snapshot of what would be, and leaves the snapshot as it was.
type vision struct {
	gangs

	pods    []*queue.Pod
	missing int
	// chosen are the nodes that were found first: after that it is only asked whether the gang still fits on these.
	chosen map[types.UID]string
}

// place implements [fwk.PodGroupSchedulingFunc].
func (v *vision) place(ctx context.Context) (*fwk.PodGroupAssignments, *fwk.Status) {
	var placed []*try
	defer func() {
		for _, t := range placed {
			t.profile.RunReservePluginsUnreserve(ctx, t.state, t.pod, t.node)
			_ = v.s.snapshot.RemovePod(klog.Logger{}, t.pod, t.node) // it was put there
		}
	}()
	result := &fwk.PodGroupAssignments{Placement: &fwk.Placement{}}
	for _, q := range v.pods {
		if len(placed) == v.missing {
			break
		}
		t, err := v.one(ctx, q)
		if err != nil {
			return nil, fwk.AsStatus(err)
		}
		if t == nil {
			continue
		}
		placed = append(placed, t)
		result.ProposedAssignments = append(result.ProposedAssignments, assignment{q.Info().WithPod(t.pod), t})
	}
	if len(placed) < v.missing {
		return nil, fwk.NewStatus(fwk.Unschedulable, fmt.Sprintf("%d pods of the gang could be placed, and %d are missing", len(placed), v.missing))
	}
	if v.chosen == nil {
		v.chosen = map[types.UID]string{}
		for _, t := range placed {
			v.chosen[t.pod.UID] = t.node
		}
	}
	return result, nil
}

// one puts a pod into the snapshot; nil: there is no node for it.
func (v *vision) one(ctx context.Context, q *queue.Pod) (*try, error) {
	pod := q.Pod()
	t := &try{profile: v.s.profiles[pod.Spec.SchedulerName], queued: q, state: cycle.NewState()}
	if v.chosen == nil {
		found, _, err := v.s.pick(ctx, t.profile, t.state, pod)
		if found == nil {
			return nil, err
		}
		t.node = found.node
	} else {
		if t.node = v.chosen[pod.UID]; t.node == "" {
			return nil, nil
		}
		switch status := v.suits(ctx, t, pod, t.node); {
		case status.IsError():
			return nil, status.AsError()
		case !status.IsSuccess():
			return nil, nil
		}
	}
	bound := *pod
	bound.Spec.NodeName = t.node
	t.pod = &bound
	if status := t.profile.RunReservePluginsReserve(ctx, t.state, t.pod, t.node); !status.IsSuccess() {
		t.profile.RunReservePluginsUnreserve(ctx, t.state, t.pod, t.node)
		return nil, nil
	}
	if err := v.s.snapshot.AddPod(q.Info().WithPod(t.pod), t.node); err != nil {
		t.profile.RunReservePluginsUnreserve(ctx, t.state, t.pod, t.node)
		return nil, fmt.Errorf("place pod of gang: %w", err)
	}
	return t, nil
}

// suits says whether a pod may be on one node.
func (v *vision) suits(ctx context.Context, t *try, pod *corev1.Pod, node string) *fwk.Status {
	s := v.s
	nodes, err := s.snapshot.NodeInfos().List()
	if err != nil {
		return fwk.AsStatus(err)
	}
	info, err := s.snapshot.NodeInfos().Get(node)
	if err != nil {
		return fwk.AsStatus(err)
	}
	only, _, status := t.profile.RunPreFilter(ctx, t.state, pod, nodes)
	switch {
	case !status.IsSuccess():
		return status
	case !only.AllNodes() && !only.NodeNames.Has(node):
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable)
	}
	return t.profile.FilterNominated(ctx, t.state, pod, info)
}

// assignment is a node that was found for a pod.
type assignment struct {
	info *cluster.PodInfo
	try  *try
}

var _ fwk.ProposedAssignment = assignment{}

func (a assignment) GetPod() *corev1.Pod           { return a.info.GetPod() }
func (a assignment) GetPodInfo() fwk.PodInfo       { return a.info }
func (a assignment) GetNodeName() string           { return a.try.node }
func (a assignment) GetCycleState() fwk.CycleState { return a.try.state }

// groupInfo is a group for which room is to be made.
type groupInfo struct {
	group *schedulingv1beta1.PodGroup
	pods  []*queue.Pod
}

var _ fwk.PodGroupInfo = groupInfo{}

// GetUnscheduledPods implements [fwk.PodGroupInfo].
func (g groupInfo) GetUnscheduledPods() []*corev1.Pod {
	all := make([]*corev1.Pod, len(g.pods))
	for i, q := range g.pods {
		all[i] = q.Pod()
	}
	return all
}

func (g groupInfo) GetName() string { return g.group.Name }

func (g groupInfo) GetNamespace() string { return g.group.Namespace }

func (g groupInfo) GetType() fwk.EntityKeyType { return fwk.PodGroupKeyType }

func (g groupInfo) GetKey() string                                              { return cache.MetaObjectToName(g.group).String() }
func (g groupInfo) GetPodGroup() *schedulingv1beta1.PodGroup                    { return g.group }
func (g groupInfo) GetChildren() []fwk.PodGroupInfo                             { return nil }
func (g groupInfo) GetCompositePodGroup() *schedulingv1alpha3.CompositePodGroup { return nil }
