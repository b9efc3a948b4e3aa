package pod

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/pod/admission"
)

// admitter says which pods the node takes beside those that are here. It belongs to the goroutine of the manager.
type admitter struct {
	manager  *Manager
	node     *node
	checks   admission.Checks
	next     map[types.NamespacedName]*corev1.Pod     // pods for which others end, whose resources they get
	backoffs map[types.NamespacedName]evictionBackoff // pods that were evicted for what they did

	// What pods have while those that wait are asked for in the order of their priority: what one gives back meanwhile
	// is not for those at the end of the row alone. nil: at any other time. Nor does the tally change then.
	held map[*worker]bool
}

var (
	_ admission.Capacity = (*admitter)(nil)
	_ admission.Pods     = (*admitter)(nil)
)

// newAdmitter puts together what the node asks before it takes a pod. Those of the pod's own name go before it comes.
func newAdmitter(m *Manager) *admitter {
	a := &admitter{
		manager: m, node: m.node,
		next: map[types.NamespacedName]*corev1.Pod{}, backoffs: map[types.NamespacedName]evictionBackoff{},
	}
	holding := func(r *admission.Request) []*admission.Share { return sharesOf(a.others(r.Key(), a.holds)) }
	a.checks = admission.Checks{
		admission.UID(a.namesake),
		admission.ForNew(admission.Shutdown(m.closed.Load)),
		admission.Affinity(m.node.cfg.Node.Name, m.node.cfg.Node.Labels),
		admission.ForNew(admission.Taints(m.node.cfg.Node.Taints)),
		admission.Sysctls(m.node.cfg.Security.Sysctls),
		admission.Ports(holding),
		admission.ForNew(admission.PriorityClass),
		admission.ForNew(admission.Pressure(m.node.cfg.Node.Short.Holding, func(p *corev1.Pod) bool {
			return admission.Spared(p, m.node.cfg.Node.Short.Cluster)
		})),
		admission.ForNew(admission.StartOrder(a)),
		admission.ForNew(admission.Fit(a)),
	}
	return a
}

// namesake is the pod of another name that has a pod's uid, or has left something by it that is here.
func (a *admitter) namesake(r *admission.Request) (types.NamespacedName, bool) {
	key, uid := r.Key(), r.Pod.UID
	for other, workers := range a.manager.workers.live {
		if other != key && workers[uid] != nil {
			return other, true
		}
	}
	if found := a.manager.left.found[uid]; isAnother(found, key) {
		return keyOf(found), true
	}
	return types.NamespacedName{}, false
}

// isAnother says whether what was found of a pod is one of another name; of some only a directory is left, without one.
func isAnother(found *corev1.Pod, key types.NamespacedName) bool {
	return found != nil && found.Name != "" && keyOf(found) != key
}

// judge says what the node has against a pod; nil: nothing.
func (a *admitter) judge(pod *corev1.Pod, ran bool) *admission.Verdict {
	if a.held == nil {
		a.node.tally.refresh()
	}
	return a.checks.Judge(&admission.Request{Pod: pod, Ran: ran})
}

// Desired is the pod of that name as it is wanted.
func (a *admitter) Desired(key types.NamespacedName) *corev1.Pod { return a.manager.desired[key].pod }

// Shown is the pod of that name with its status.
func (a *admitter) Shown(key types.NamespacedName) (*corev1.Pod, bool) {
	return a.node.status.Get(key)
}

// Using is what those pods have whose requests count before those of a pod that is to come.
func (a *admitter) Using(r *admission.Request) *admission.Sum {
	sum := a.node.tally.sum.Clone()
	for _, own := range a.manager.workers.live[r.Key()] {
		if a.uses(own) {
			sum.Sub(own.share)
		}
	}
	for _, s := range a.promised(r) {
		sum.Add(s)
	}
	return sum
}

// Allocatable is what pods may request, with what device plugins offer.
func (a *admitter) Allocatable() corev1.ResourceList {
	more := a.node.cfg.Given.Extended()
	if len(more) == 0 {
		return a.node.cfg.Node.Allocatable
	}
	out := a.node.cfg.Node.Allocatable.DeepCopy()
	maps.Copy(out, more)
	return out
}

// fails says whether a pod fails that the node does not take for the moment. Whatever its origin, it waits for those
// that it starts after and for those that end for it.
func (a *admitter) fails(want wanted, key types.NamespacedName, v *admission.Verdict) bool {
	return !want.rules.Waits && v.Reason != admission.ReasonStartOrder && a.next[key] == nil
}

// refused says whether a pod has failed because the node did not take it: it stays failed when there is enough for it
// later.
func (a *admitter) refused(want wanted, key types.NamespacedName) bool {
	shown, ok := a.node.status.Get(key)
	return ok && shown.UID == want.pod.UID && shown.Status.Phase == corev1.PodFailed && !want.rules.Waits
}
