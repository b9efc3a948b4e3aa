package pod

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/pod/plan"
	"github.com/berth-node/berth/agent/pod/spec"
)

// A pod of an API server is deleted in two steps: it is given a time by which it has to end, and the object goes when
// the node says that nothing of the pod is left. Until then the object is there, and asks for nothing but that.

// endDeleted ends a pod that is being deleted, and says when nothing of it is left.
func (m *Manager) endDeleted(ctx context.Context, key types.NamespacedName, pod *corev1.Pod) {
	for uid, found := range m.left.found {
		switch {
		case uid == pod.UID && !isAnother(found, key):
			delete(m.left.found, uid)
			m.workers.start(ctx, pod)
		case found.Namespace == key.Namespace && found.Name == key.Name:
			m.left.endFound(ctx, uid)
		}
	}
	for uid, w := range m.workers.live[key] {
		grace := spec.Grace(w.share.Pod)
		if uid == pod.UID {
			grace = deletionGrace(pod)
		}
		m.workers.end(w, grace)
	}
	if len(m.workers.live[key]) > 0 {
		return // removeWorker comes back to it
	}
	delete(m.admitter.backoffs, key)
	m.node.status.Delete(pod)
}

// minDeletionGrace is what a pod has that is given no time at all: so much kubelet gives it, too.
const minDeletionGrace = time.Second

// deletionGrace is how long a pod that is being deleted may take to end. It counts from when the node hears of it: the
// API server's clock is another one.
func deletionGrace(pod *corev1.Pod) time.Duration {
	if pod.DeletionGracePeriodSeconds == nil {
		return spec.Grace(pod)
	}
	return max(spec.Seconds(*pod.DeletionGracePeriodSeconds), minDeletionGrace)
}

// ended says whether a pod has come to its end as the API server knows it. Nobody takes back a final phase, so that
// such a pod is not run again, whatever became of what was left of it here.
func ended(pod *corev1.Pod) bool { return over(pod) && !desired.RulesOf(pod).Manifest }

// finalize has a pod of a final phase end that is not known to be over here; shown is what was said of it last. No
// record is needed of that: the API server has it.
func (f *fate) finalize(pod, shown *corev1.Pod) {
	if f.end != nil || shown != nil && over(shown) || !ended(pod) {
		return
	}
	f.final = &pod.Status
	f.end = &plan.Ending{Since: time.Now(), Grace: spec.Grace(pod), Keep: true}
}
