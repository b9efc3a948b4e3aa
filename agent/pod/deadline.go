package pod

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/pod/spec"
)

// deadline is when the pod has been active for as long as its activeDeadlineSeconds, counted from its start time in the
// status. An agent that was restarted has that from the times of the sandbox and the containers.
func (w *worker) deadline() time.Time {
	seconds := w.pod.Spec.ActiveDeadlineSeconds
	if seconds == nil || w.shown.last == nil || w.shown.last.Status.StartTime == nil {
		return time.Time{} // what has not been told yet has just begun
	}
	return w.shown.last.Status.StartTime.Add(time.Duration(*seconds) * time.Second)
}

// expire fails a pod that is past its deadline.
func (w *worker) expire() {
	const message = "Pod was active on the node longer than the specified deadline"
	w.node.event(w.pod, corev1.EventTypeNormal, "DeadlineExceeded", message)
	w.evict(&Eviction{Reason: "DeadlineExceeded", Message: message, GraceSeconds: int64(spec.Grace(w.pod) / time.Second)})
}
