package pod

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/pod/admission"
	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/status"
)

// reconcile makes the workers of a name be what is desired: the one of the desired pod, once all others of that name
// have ended. A pod that is to be replaced goes on as long as the node would not take the new one.
func (m *Manager) reconcile(ctx context.Context, key types.NamespacedName) {
	want := m.desired[key]
	if want.pod != nil {
		want.pod = classed(want.pod, m.node.objects(want.pod))
	}
	before := m.held[key]
	delete(m.held, key)
	delete(m.admitter.next, key)
	if want.pod != nil && want.pod.DeletionTimestamp != nil {
		m.endDeleted(ctx, key, want.pod)
		return
	}
	ran := false
	for uid, pod := range m.left.found {
		if pod.Namespace != key.Namespace || pod.Name != key.Name {
			continue
		}
		end := readTermination(m.node.cfg.RootDir, uid)
		switch {
		case want.pod == nil:
		case want.pod.UID == uid && (end == nil || end.Evicted != nil):
			delete(m.left.found, uid) // its worker will find it
			ran = true
		case end == nil && m.left.adopt(ctx, uid):
		default:
			m.left.endFound(ctx, uid)
		}
	}
	if want.pod != nil && want.rules.KeepsOld && replaces(want.pod, m.workers.live[key]) {
		if !m.node.registry.synced.Load() {
			m.held[key] = before // who else is here is not known yet, and may be in the new one's way
			return
		}
		if v := m.admitter.judge(want.pod, false); v != nil {
			m.keepOld(want.pod, key, v, before)
			return
		}
	}
	waits := false
	for uid, w := range m.workers.live[key] {
		if want.pod != nil && want.pod.UID == uid && !w.managed.leaving && !m.admitter.returns(w, want, key) {
			w.mail.putOrder(order{pod: want.pod})
			return
		}
		m.workers.end(w, spec.Grace(w.share.Pod))
		waits = true
	}
	switch {
	case waits: // removeWorker comes back to it
	case want.pod != nil:
		m.tryStart(ctx, key, want, ran, before)
	default:
		delete(m.admitter.backoffs, key)
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
	m.log.Warn("the manifest's new pod cannot run, so the old one goes on", "pod", key.String(), "reason", v.Reason,
		"message", v.Message)
	m.node.event(want, corev1.EventTypeWarning, v.Reason, "the pod that runs is not replaced: %s", v.Message)
}

// tryStart starts a pod unless the node has something against it. ran says that there is something of it already,
// before why it was held until now.
func (m *Manager) tryStart(
	ctx context.Context, key types.NamespacedName, want wanted, ran bool, before status.Waiting,
) {
	pod := want.pod
	if !ran && m.admitter.refused(want, key) {
		return
	}
	if !ran && ended(pod) {
		m.node.status.Put(pod)
		return
	}
	v := m.admitter.judge(pod, ran)
	if v == nil {
		v = m.admitter.admitResources(ctx, pod, ran)
	}
	if v == nil {
		m.workers.start(ctx, pod)
		return
	}
	if v.Final = v.Final || !ran && m.admitter.fails(want, key, v); !v.Final {
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
