package pod

import (
	"context"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/environment"
	"github.com/berth-node/berth/agent/pod/plan"
	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/cgroups/kube"
)

// A pod that runs is resized in three steps, and each is a fact of its own in its status:
//
//	wanted  ─the node has enough─>  allocated  ──groups are changed──>  acknowledged
//	(spec)                          (allocatedResources)                (resources)
//
// The worker's pod always has what is allocated, so that whatever is started or made again has it too. What a container
// was acknowledged is in its annotations since it was made, and in the record since it was resized.

// sizing is what the pod has, and what it wants.
type sizing struct {
	worker   *worker
	want     *corev1.Pod          // with resources that pod has not been given yet; nil: it has what is wanted
	pending  *corev1.PodCondition // why not
	resized  *plan.Resized
	added    *added
	recalled bool // it is known what was given before the agent was restarted
}

// accept takes a new definition of the pod. Of its resources it keeps what is allocated, until the node has enough for
// others.
func (z *sizing) accept(pod *corev1.Pod) {
	w := z.worker
	if !maps.Equal(pod.Labels, w.pod.Labels) || !maps.Equal(pod.Annotations, w.pod.Annotations) {
		w.place.renew = w.place.renew || environment.HasContent(pod) // a volume may tell of them
	}
	if z.want != nil && sameResources(pod, z.want) {
		// It is the same wish, of which it is known whether it can be granted.
		z.want, w.pod = pod, z.withAllocated(pod)
		return
	}
	z.want, z.pending = nil, nil
	if sameResources(pod, w.pod) {
		w.pod = pod
		return
	}
	if err := environment.KeepDefinition(w.node.cfg.RootDir, pod); err != nil {
		w.log.Warn("a restart of the agent may end the pod before another one can take its place", "error", err)
	}
	z.want, w.pod = pod, z.withAllocated(pod)
}

// withAllocated is a definition of the pod with the resources that are allocated.
func (z *sizing) withAllocated(pod *corev1.Pod) *corev1.Pod {
	now := z.worker.pod
	return withResources(pod, now.Spec.Resources, func(c *corev1.Container) *corev1.ResourceRequirements {
		if had := spec.FindContainer(now, c.Name); had != nil {
			return &had.Resources
		}
		return nil
	})
}

// recall finds out what was allocated before the agent was restarted, by what the containers have.
func (z *sizing) recall() {
	w := z.worker
	if z.recalled || w.fate.hidden {
		return
	}
	z.recalled = true
	if z.added.empty() { // nobody has told of more meanwhile
		z.added = readAdded(w.node.cfg.RootDir, w.uid)
	}
	if len(w.observer.seen.Containers) == 0 {
		return
	}
	z.resized = readResized(w.node.cfg.RootDir, w.uid)
	pod := w.pod.Spec.Resources
	if z.resized.Pod != nil {
		pod = z.resized.Pod
	}
	had := withResources(w.pod, pod, func(c *corev1.Container) *corev1.ResourceRequirements {
		now := w.observer.seen.Latest(c.Name)
		if now == nil {
			return nil
		}
		if r, ok := z.resized.Acknowledged(now); ok {
			return &r
		}
		return nil
	})
	if !sameResources(had, w.pod) {
		z.want, w.pod = w.pod, had
	}
}

// allocate gives the pod what it wants if the node has it.
func (z *sizing) allocate() {
	w := z.worker
	if z.want == nil || w.fate.end != nil {
		return
	}
	w.told.deferred.Store(true)
	all, settled := w.node.registry.pods()
	if !settled {
		return // they are told when it is
	}
	reason, message := w.node.pinned(z.want)
	if err := kube.CheckLimits(z.want); reason == "" && err != nil {
		reason, message = corev1.PodReasonInfeasible, err.Error()
	}
	if reason == "" {
		reason, message = w.node.reservations.reserve(z.want, w.pod, w.node.cfg.Node.Allocatable, all)
	}
	if reason != "" {
		if z.pending == nil || z.pending.Reason != reason || z.pending.Message != message {
			w.node.event(z.want, corev1.EventTypeWarning, "Resize"+reason, "%s", message)
		}
		z.pending = &corev1.PodCondition{
			Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: reason, Message: message,
		}
		w.told.deferred.Store(reason == corev1.PodReasonDeferred)
		return
	}
	w.told.deferred.Store(false)
	// The record comes before the act: whoever is here after a crash finishes it.
	z.resized.Acting, z.resized.Pod = true, w.pod.Spec.Resources
	if err := writeResized(w.node.cfg.RootDir, w.uid, z.resized); err != nil {
		w.log.Warn("a restart of the agent may leave a resize half done", "error", err)
	}
	w.pod, z.want, z.pending = z.want, nil, nil
	w.place.renew = environment.HasContent(w.pod) // a volume may tell of resources
	delete(w.tries.failed, plan.Step{Kind: plan.Resize}.Key())
	w.node.event(w.pod, corev1.EventTypeNormal, "ResizeStarted", "Pod resize started")
}

// resize makes groups and containers have what is allocated.
func (a acts) resize(plan.Step) act {
	w := a.worker
	pod, record, node := w.pod, w.size.resized.Clone(), w.node.Spec()
	ids := map[string]string{}
	for name, list := range w.observer.seen.Containers {
		c := spec.FindContainer(pod, name)
		if c == nil || list[0].GetState() != plan.Running {
			continue
		}
		had, ok := record.Acknowledged(&list[0])
		if ok && !plan.EqualResources(&had, &c.Resources) || record.Acting && hasPodLimits(pod, c) {
			ids[name] = list[0].GetId()
		}
	}
	known := w.observer.seen
	return func(ctx context.Context) (func(), error) {
		err := w.node.cfg.Cgroups.ResizePod(pod, ids, func(name string) error {
			ctx, cancel := context.WithTimeout(ctx, containerTimeout)
			defer cancel()
			c := spec.FindContainer(pod, name)
			to := spec.Resized(pod, c, node)
			if w.node.cfg.Given.Pins.Pin(pod.UID, name).Exclusive {
				to.CpuQuota = -1
			}
			_, err := w.node.cfg.Runtime.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{
				ContainerId: ids[name], Linux: to,
			})
			if isNotFound(err) {
				return nil // it has ended, and the next one is made with what is allocated
			}
			if err == nil {
				record.Containers[ids[name]] = c.Resources
			}
			return err
		})
		if err == nil {
			record.Acting, record.Pod = false, pod.Spec.Resources
			record.Forget(known)
			w.node.event(pod, corev1.EventTypeNormal, "ResizeCompleted", "Pod resize completed")
		}
		if werr := writeResized(w.node.cfg.RootDir, w.uid, record); err == nil {
			err = werr
		}
		return func() {
			if !sameResources(pod, w.pod) {
				// Others were allocated meanwhile, and of those of the pod as a whole nothing else tells.
				record.Acting = true
			}
			w.size.resized = record
			w.node.registry.retryDeferred()
		}, err
	}
}

// pinned says why a pod's resize cannot be: which CPUs and what memory are a container's own is settled when its pod is
// admitted.
func (n *node) pinned(pod *corev1.Pod) (reason, message string) {
	if n.cfg.Given.Pins.Keeps(pod) {
		return "", ""
	}
	return corev1.PodReasonInfeasible, "Resize is infeasible for containers with CPUs or memory nodes of their own"
}

// hasPodLimits says whether the container has limits of the pod as a whole, which its own resources do not tell of.
func hasPodLimits(pod *corev1.Pod, c *corev1.Container) bool {
	if pod.Spec.Resources == nil {
		return false
	}
	for name := range pod.Spec.Resources.Limits {
		if _, own := c.Resources.Limits[name]; !own {
			return true
		}
	}
	return false
}

// resizeConditions are those that tell of a resize that is not done yet.
func (z *sizing) resizeConditions() []corev1.PodCondition {
	var out []corev1.PodCondition
	if z.pending != nil {
		out = append(out, *z.pending)
	}
	if z.resized.Acting {
		c := corev1.PodCondition{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue}
		if f, failed := z.worker.tries.failed[plan.Step{Kind: plan.Resize}.Key()]; failed {
			c.Reason, c.Message = corev1.PodReasonError, f.Message
		}
		out = append(out, c)
	}
	return out
}

// acknowledgedResources are those of the containers that run, by name.
func (z *sizing) acknowledgedResources() map[string]corev1.ResourceRequirements {
	out := map[string]corev1.ResourceRequirements{}
	for name, list := range z.worker.observer.seen.Containers {
		if r, ok := z.resized.Acknowledged(&list[0]); ok && list[0].GetState() == plan.Running {
			out[name] = r
		}
	}
	return out
}

// sameResources compares what two definitions of one pod ask for.
func sameResources(a, b *corev1.Pod) bool {
	if !equality.Semantic.DeepEqual(a.Spec.Resources, b.Spec.Resources) {
		return false
	}
	for _, list := range [][]corev1.Container{a.Spec.InitContainers, a.Spec.Containers} {
		for i := range list {
			if o := spec.FindContainer(b, list[i].Name); o != nil && !plan.EqualResources(&list[i].Resources, &o.Resources) {
				return false
			}
		}
	}
	return true
}

// withResources is the pod with other resources: of the pod as a whole, and of each container for which there are
// others.
func withResources(
	pod *corev1.Pod, whole *corev1.ResourceRequirements, of func(*corev1.Container) *corev1.ResourceRequirements,
) *corev1.Pod {
	out := pod.DeepCopy()
	out.Spec.Resources = whole
	for _, list := range [][]corev1.Container{out.Spec.InitContainers, out.Spec.Containers} {
		for i := range list {
			if r := of(&list[i]); r != nil {
				list[i].Resources = *r
			}
		}
	}
	return out
}

// reserve keeps for the pod what it wants, or says why the node does not have it. One pod after the other is asked.
func (r *reservations) reserve(
	want, have *corev1.Pod, node corev1.ResourceList, all []*corev1.Pod,
) (reason, message string) {
	if a, b := kube.QoS(have), kube.QoS(want); a != b {
		return corev1.PodReasonInfeasible, fmt.Sprintf("the pod's QoS class may not change from %s to %s", a, b)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	asked, now := requests(want, false), requests(have, false)
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		ask, had, room := asked[name], now[name], node[name]
		if ask.Cmp(had) <= 0 || room.IsZero() {
			continue
		}
		if ask.Cmp(room) > 0 {
			return corev1.PodReasonInfeasible, fmt.Sprintf("Node didn't have enough capacity: %s, requested: %s, capacity: %s",
				name, &ask, &room)
		}
		used := r.used(want.UID, name, all)
		sum := ask.DeepCopy()
		sum.Add(used)
		if sum.Cmp(room) > 0 {
			return corev1.PodReasonDeferred, fmt.Sprintf(
				"Node didn't have enough resource: %s, requested: %s, used: %s, capacity: %s", name, &ask, &used, &room)
		}
	}
	r.granted[want.UID] = grant{asked, time.Now()}
	return "", ""
}

// requests of a pod; actual counts what is allocated or in use if that is more.
func requests(pod *corev1.Pod, actual bool) corev1.ResourceList {
	return resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{UseStatusResources: actual})
}

// over says whether nothing of the pod runs or will.
func over(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}
