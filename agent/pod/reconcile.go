package pod

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/pod/admission"
	"github.com/berth-node/berth/agent/status"
)

// reconcile makes the workers of a name be what is desired: the one of the desired pod, once all others of that name have ended. A pod
// that is to be replaced goes on as long as the node would not take the new one.
func (m *Manager) reconcile(ctx context.Context, key types.NamespacedName) {
	want := m.desired[key]
	if want != nil {
		want = classed(want, m.node.cfg.Objects)
	}
	before := m.held[key]
	delete(m.held, key)
	delete(m.admitter.next, key)
	ran := false
	for uid, pod := range m.left.found {
		if pod.Namespace != key.Namespace || pod.Name != key.Name {
			continue
		}
		end := readMark(m.node.cfg.RootDir, uid)
		switch {
		case want == nil:
		case want.UID == uid && (end == nil || end.Evicted != nil):
			delete(m.left.found, uid) // its worker will find it
			ran = true
		case want != nil && end == nil && m.left.adopt(ctx, uid):
		default:
			m.left.endFound(ctx, uid)
		}
	}
	if want != nil && desired.RulesOf(want).KeepsOld && replaces(want, m.live[key]) {
		if !m.node.registry.synced.Load() {
			m.held[key] = before // who else is here is not known yet, and may be in the new one's way
			return
		}
		if v := m.admitter.judge(want, false); v != nil {
			m.keepOld(want, key, v, before)
			return
		}
	}
	waits := false
	for uid, w := range m.live[key] {
		if want != nil && want.UID == uid && !w.managed.leaving && !m.admitter.returns(w, want, key) {
			w.mail.putOrder(order{pod: want})
			return
		}
		m.endWorker(w)
		waits = true
	}
	switch {
	case waits: // bury comes back to it
	case want != nil:
		m.tryStart(ctx, key, want, ran, before)
	default:
		delete(m.admitter.relapse, key)
		if shown, ok := m.node.status.Get(key); ok {
			m.node.status.Delete(shown) // it never had a worker
		}
	}
}

// replaces says whether a pod of the name is here that was not told to end, and another one is wanted.
func replaces(want *corev1.Pod, live map[types.UID]*worker) bool {
	stays := false
	for uid, w := range live {
		if uid == want.UID {
			return false
		}
		stays = stays || !w.managed.leaving
	}
	return stays
}

// keepOld lets the pod that is here go on, and tells why.
func (m *Manager) keepOld(want *corev1.Pod, key types.NamespacedName, v *admission.Verdict, before status.Waiting) {
	m.held[key] = v.Waiting // a verdict that is final for this manifest is asked for again with no other result
	if v.Waiting == before {
		return
	}
	m.log.Warn("the manifest's new pod cannot run, so the old one goes on", "pod", key.String(), "reason", v.Reason, "message", v.Message)
	m.node.event(want, corev1.EventTypeWarning, v.Reason, "the pod that runs is not replaced: %s", v.Message)
}

// tryStart starts a pod unless the node has something against it. ran says that there is something of it already, before why it was
// held until now.
func (m *Manager) tryStart(ctx context.Context, key types.NamespacedName, pod *corev1.Pod, ran bool, before status.Waiting) {
	if !ran && m.refused(pod, key) {
		return
	}
	v := m.admitter.judge(pod, ran)
	if v == nil {
		v = m.admitter.admitResources(ctx, pod, ran)
	}
	if v == nil {
		m.startWorker(ctx, pod)
		return
	}
	if v.Final = v.Final || !ran && m.failsRefused(pod, key, v); !v.Final {
		m.held[key] = v.Waiting
		if v.Waiting == before {
			return // it is known
		}
	}
	shown := *pod
	shown.Status = status.Build(status.Input{
		Pod: pod, Now: time.Now(), Runtime: m.node.runtimeName, HostIPs: m.node.nodeIPs(),
		Reason: v.Reason, Message: v.Message, Failed: v.Final, Ended: v.Final, Claims: claimStatuses(pod),
	})
	m.node.status.Put(&shown)
	m.node.event(pod, corev1.EventTypeWarning, v.Reason, "%s", v.Message)
}

// failsRefused says whether a pod fails that the node does not take for the moment. Whatever its origin, it waits for its turn and for
// those that end for it.
func (m *Manager) failsRefused(pod *corev1.Pod, key types.NamespacedName, v *admission.Verdict) bool {
	return !desired.RulesOf(pod).Waits && v.Reason != admission.ReasonTurn && m.admitter.next[key] == nil
}

// refused says whether a pod has failed because the node did not take it: it stays failed when there is room later.
func (m *Manager) refused(pod *corev1.Pod, key types.NamespacedName) bool {
	shown, ok := m.node.status.Get(key)
	return ok && shown.UID == pod.UID && shown.Status.Phase == corev1.PodFailed && !desired.RulesOf(pod).Waits
}
