package defaultpreemption

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/cluster"
)

// groups says what pods are as members of groups.
type groups struct{ manager fwk.PodGroupManager }

// of is a pod's group; nil: it is of none, or nothing is known of it.
func (g groups) of(pod *corev1.Pod) *schedulingv1beta1.PodGroup {
	key, ok := cluster.Group(pod)
	if !ok || g.manager == nil {
		return nil
	}
	group, err := g.manager.PodGroups().Get(key.Namespace, key.Name)
	if err != nil {
		return nil
	}
	return group
}

// priority is a pod's, or that of its group, which stands for all of them.
func (g groups) priority(pod *corev1.Pod) int32 {
	if group := g.of(pod); group != nil && group.Spec.Priority != nil {
		return *group.Spec.Priority
	}
	return priority(pod)
}

// whole is a pod's group where all of it has to end together; nil: the pod ends by itself.
func (g groups) whole(pod *corev1.Pod) *schedulingv1beta1.PodGroup {
	if group := g.of(pod); group != nil && group.Spec.DisruptionMode != nil && group.Spec.DisruptionMode.All != nil {
		return group
	}
	return nil
}

// with adds to victims those that have to end with them.
func (g groups) with(victims []*corev1.Pod) []*corev1.Pod {
	known := map[types.UID]bool{}
	for _, v := range victims {
		known[v.UID] = true
	}
	all := victims
	for _, v := range victims {
		group := g.whole(v)
		if group == nil {
			continue
		}
		state, err := g.manager.PodGroupStates().Get(group.Namespace, group.Name)
		if err != nil {
			continue
		}
		for _, other := range state.ScheduledPods() {
			if !known[other.UID] {
				known[other.UID] = true
				all = append(all, other)
			}
		}
	}
	return all
}

// unit is what ends together: one pod, or a group.
type unit struct {
	group    *schedulingv1beta1.PodGroup // nil: one pod
	pods     []fwk.PodInfo
	priority int32
}

// units are those of the pods on some nodes whose priority is less than a given one.
func (g groups) units(nodes []fwk.NodeInfo, than int32) []*unit {
	var all []*unit
	wholes := map[types.UID]*unit{}
	for _, node := range nodes {
		for _, info := range node.GetPods() {
			pod := info.GetPod()
			rank := g.priority(pod)
			if rank >= than {
				continue
			}
			group := g.whole(pod)
			if group == nil {
				all = append(all, &unit{pods: []fwk.PodInfo{info}, priority: rank})
				continue
			}
			u := wholes[group.UID]
			if u == nil {
				u = &unit{group: group, priority: rank}
				wholes[group.UID] = u
				all = append(all, u)
			}
			u.pods = append(u.pods, info)
		}
	}
	return all
}

// started is when the first pod of a unit began to run.
func (u *unit) started() time.Time {
	first := started(u.pods[0].GetPod())
	for _, p := range u.pods[1:] {
		if at := started(p.GetPod()); at.Before(first) {
			first = at
		}
	}
	return first
}

// ending says whether all of a unit ends anyway.
func (u *unit) ending() bool {
	return !slices.ContainsFunc(u.pods, func(p fwk.PodInfo) bool { return p.GetPod().DeletionTimestamp == nil })
}

// byWeight has units first that matter more: by priority, groups before single pods, the larger groups, and those that
// run for longer. What ends anyway comes last.
func byWeight(a, b *unit) int {
	one := func(yes bool) int {
		if yes {
			return 1
		}
		return 0
	}
	return cmp.Or(
		cmp.Compare(one(a.ending()), one(b.ending())), cmp.Compare(b.priority, a.priority), cmp.Compare(one(b.group != nil), one(a.group != nil)),
		cmp.Compare(len(b.pods), len(a.pods)), a.started().Compare(b.started()),
	)
}

// condemn has the API say of a group that it ends to make room.
func (p *Plugin) condemn(ctx context.Context, group *schedulingv1beta1.PodGroup, message string) error {
	condition := metav1.Condition{
		Type: schedulingv1beta1.DisruptionTarget, Status: metav1.ConditionTrue, Reason: schedulingv1beta1.PodGroupReasonPreemptionByScheduler,
		Message: message, ObservedGeneration: group.Generation, LastTransitionTime: metav1.Now(),
	}
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": group.UID}, "status": map[string]any{"conditions": []metav1.Condition{condition}},
	})
	if err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	_, err = p.handle.ClientSet().SchedulingV1beta1().PodGroups(group.Namespace).
		Patch(ctx, group.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("change status of pod group %s/%s: %w", group.Namespace, group.Name, err)
	}
	return nil
}
