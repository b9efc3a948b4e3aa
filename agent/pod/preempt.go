package pod

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/pod/admission"
	"github.com/berth-node/berth/agent/pod/spec"
)

// reasonPreempting is kubelet's, of the pods that go and of the event that says so.
const reasonPreempting = "Preempting"

// Preempt ends pods of lower priority for one that has not got what it requests. It says whether the pod is to wait for
// their end.
func (a *admitter) Preempt(r *admission.Request) bool {
	if !admission.Preempts(r.Pod) {
		return false
	}
	var stay []*corev1.Pod
	ending := false
	workers := map[types.UID]*worker{}
	for _, w := range a.others(r.Key(), a.uses) {
		if w.managed.leaving || w.managed.preempted {
			ending = true
			continue
		}
		workers[w.uid], stay = w, append(stay, w.share.Pod)
	}
	for _, s := range a.promised(r) {
		stay = append(stay, s.Pod)
	}
	victims, lacks := admission.Victims(r.Pod, stay, a.Allocatable())
	if !lacks {
		return a.promise(r, ending) // and they are enough
	}
	for _, v := range victims {
		a.preempt(workers[v.UID], r.Key())
	}
	return a.promise(r, len(victims) > 0)
}

// promise keeps for a pod what those have that end for it.
func (a *admitter) promise(r *admission.Request, ends bool) bool {
	if ends {
		a.next[r.Key()] = r.Pod
	}
	return ends
}

func (a *admitter) preempt(w *worker, to types.NamespacedName) {
	const message = "Preempted in order to admit critical pod"
	v := w.share.Pod
	a.manager.log.Warn("pod ends for one of higher priority", "pod", v.Namespace+"/"+v.Name, "uid", string(v.UID),
		"for", to.String())
	a.node.event(v, corev1.EventTypeWarning, reasonPreempting, message)
	w.managed.preempted = true
	w.mail.putEviction(Eviction{
		Reason: reasonPreempting, Message: message, GraceSeconds: int64(spec.Grace(v) / time.Second),
		Return: ReturnAdmitted,
		Conditions: []corev1.PodCondition{{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet,
			Message: message,
		}},
	})
}
