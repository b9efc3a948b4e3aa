package defaultpreemption

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// endTimeout bounds the end of all victims of one pod.
const endTimeout = time.Minute

// counter hears how many pods are ended.
type counter interface{ Preempted(victims int) }

// end has victims end beside the scheduler's loop, for pods that are to come to some nodes. The pods come back to the
// queue by the event that the last victim is gone; where one cannot be ended they come back at once, to try again.
func (p *Plugin) end(ctx context.Context, pods, victims []*corev1.Pod, nodes []string) {
	ending := func(on bool) {
		for _, pod := range pods {
			p.ending.set(pod.UID, on)
		}
	}
	p.ending.begin(pods, victims)
	ending(true)
	if h, counts := p.handle.(counter); counts {
		h.Preempted(len(victims))
	}
	log := klog.FromContext(ctx)
	// Others that the room was kept for are of less priority: they have to look for another node.
	lesser := p.lesserNominated(pods[0], nodes)
	for _, other := range lesser {
		p.handle.DeleteNominatedPodIfExists(other)
		p.ending.forget(other)
	}
	ctx = context.WithoutCancel(ctx) // the attempt is over before
	go func() {
		ctx, cancel := context.WithTimeout(ctx, endTimeout)
		defer cancel()
		defer ending(false)
		for _, other := range lesser {
			if err := p.clear(ctx, other); err != nil {
				log.Error(err, "pod is still nominated", "pod", klog.KObj(other))
			}
		}
		for i, victim := range victims {
			if !p.wanted(pods) {
				p.ending.forget(pods...)
				return
			}
			if i == len(victims)-1 {
				// The event of its end is what wakes the pods, which must not be kept away any more by then.
				ending(false)
			}
			if err := p.endOne(ctx, pods[0], victim); err != nil {
				log.Error(err, "room is not made for a pod", "pod", klog.KObj(pods[0]), "victim", klog.KObj(victim))
				p.ending.forget(pods...)
				ending(false)
				again := map[string]*corev1.Pod{}
				for _, pod := range pods {
					again[klog.KObj(pod).String()] = pod
				}
				p.handle.Activate(log, again)
				return
			}
		}
	}()
}

// wanted says whether any of some pods still waits for a node. Ending a hundred others takes a while, in which those
// that they are ended for may be deleted, or find room.
func (p *Plugin) wanted(pods []*corev1.Pod) bool {
	all := p.handle.SharedInformerFactory().Core().V1().Pods().Lister()
	return slices.ContainsFunc(pods, func(pod *corev1.Pod) bool {
		now, err := all.Pods(pod.Namespace).Get(pod.Name)
		return err == nil && now.UID == pod.UID && now.DeletionTimestamp == nil && now.Spec.NodeName == ""
	})
}

func (p *Plugin) lesserNominated(pod *corev1.Pod, nodes []string) []*corev1.Pod {
	var lesser []*corev1.Pod
	for _, node := range nodes {
		for _, other := range p.handle.NominatedPodsForNode(node) {
			if o := other.GetPod(); priority(o) < priority(pod) {
				lesser = append(lesser, o)
			}
		}
	}
	return lesser
}

// clear has the API say no more that a pod is to come to a node.
func (p *Plugin) clear(ctx context.Context, pod *corev1.Pod) error {
	return p.patch(ctx, pod, map[string]any{"nominatedNodeName": nil})
}

// patch changes a pod's status, if it is still the same pod.
func (p *Plugin) patch(ctx context.Context, pod *corev1.Pod, status map[string]any) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	_, err = p.handle.ClientSet().CoreV1().Pods(pod.Namespace).
		Patch(ctx, pod.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("change status of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// endOne ends a victim: one that is not bound yet is stopped on its way, others are deleted, and say by whom.
func (p *Plugin) endOne(ctx context.Context, pod, victim *corev1.Pod) error {
	if w := p.handle.GetWaitingPod(victim.UID); w != nil && w.Preempt(Name, "preempted") {
		return nil
	}
	if b := p.handle.GetPodInPreBind(victim.UID); b != nil && b.CancelPod("preempted by pod "+string(pod.UID)) {
		return nil
	}
	if victim.DeletionTimestamp == nil {
		message := pod.Spec.SchedulerName + ": preempting to accommodate a higher priority pod"
		if group := p.groups.whole(victim); group != nil && !meta.IsStatusConditionTrue(group.Status.Conditions, schedulingv1beta1.DisruptionTarget) {
			if err := p.condemn(ctx, group, message); err != nil {
				return err
			}
		}
		condition := corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler,
			ObservedGeneration: victim.Generation, LastTransitionTime: metav1.Now(),
			Message: message,
		}
		if err := p.patch(ctx, victim, map[string]any{"conditions": []corev1.PodCondition{condition}}); err != nil {
			return err
		}
		err := p.handle.ClientSet().CoreV1().Pods(victim.Namespace).
			Delete(ctx, victim.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(victim.UID))})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("delete pod %s/%s: %w", victim.Namespace, victim.Name, err)
		}
	}
	if r := p.handle.EventRecorder(); r != nil {
		r.Eventf(victim, pod, corev1.EventTypeNormal, "Preempted", "Preempting", "Preempted by pod %v on node %v", pod.UID, victim.Spec.NodeName)
	}
	return nil
}

// askExtenders has extenders that know of it take candidates away, or choose other victims.
func (p *Plugin) askExtenders(pod *corev1.Pod, found []*candidate, nodes fwk.NodeInfoLister) ([]*candidate, error) {
	var asked []fwk.Extender
	for _, e := range p.handle.Extenders() {
		if e.SupportsPreemption() && e.IsInterested(pod) {
			asked = append(asked, e)
		}
	}
	if len(asked) == 0 {
		return found, nil
	}
	all := map[string]*extenderv1.Victims{}
	for _, c := range found {
		all[c.node] = &extenderv1.Victims{Pods: c.victims, NumPDBViolations: int64(c.violations)}
	}
	for _, e := range asked {
		left, err := e.ProcessPreemption(pod, all, nodes)
		if err != nil && e.IsIgnorable() {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("ask extender %q about preemption: %w", e.Name(), err)
		}
		for node, victims := range left {
			if victims == nil || len(victims.Pods) == 0 {
				if !e.IsIgnorable() {
					return nil, fmt.Errorf("ask extender %q about preemption: it wants node %q without victims", e.Name(), node)
				}
				delete(left, node)
			}
		}
		all = left
	}
	result := make([]*candidate, 0, len(all))
	for node, v := range all {
		result = append(result, &candidate{node: node, victims: v.Pods, violations: int(v.NumPDBViolations)})
	}
	return result, nil
}
