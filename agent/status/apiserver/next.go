package apiserver

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/desired"
)

// verb is what is to be done next about a pod. That of a pod of the server goes
//
//	(told) -> patch* -> (gone here, and being deleted there) -> patch -> remove
//
// with a read wherever it is not known what the server has. That of a static pod goes
//
//	create -> patch* -> (gone here) -> remove
//
// with remove and create where the mirror pod there is, is not that of the static pod.
type verb string

const (
	nothing verb = ""       // until something is told
	waits   verb = "wait"   // as nothing, but there is something that the server lacks
	read    verb = "list"   // what it has
	patch   verb = "patch"  // its status
	remove  verb = "delete" // it
	create  verb = "create" // the mirror pod
)

// A status that tells little waits for what follows it: most pods run within that time after they are begun with, also
// when many are at once, and have ended within the other after they are told to end, so that the server is written to
// once and not five times. What has gone wrong is told sooner.
const (
	quiet         = 100 * time.Millisecond
	quietStarting = 2 * time.Second
	quietEnding   = time.Second
)

// leftFor is for how long a mirror pod stays of which no static pod is put, when all of them are known.
const leftFor = 10 * time.Second

// act is what is done next.
type act struct {
	verb    verb
	key     types.NamespacedName
	has     *seen
	pod     *corev1.Pod // what the node says; of create: the mirror pod
	deleted bool        // the pod is gone here, and being deleted there
	status  corev1.PodStatus
	version int // of what the node says
	resets  int // of the writer
	since   time.Time
}

// next decides what to do about a pod, and when.
func (w *Writer) next(e *entry, now time.Time) (act, time.Time) {
	a := act{key: e.key, has: e.has, pod: e.want, version: e.version, resets: w.resets, since: e.since}
	if e.static {
		a.verb = e.mirrorVerb(w)
	} else {
		a.verb = e.podVerb(w)
	}
	if a.verb == create {
		a.pod = mirrorOf(e.want, w.cfg.Node, w.cfg.NodeUID())
	}
	if a.verb == remove && e.want == nil && !e.gone {
		return a, w.settled.Add(leftFor)
	}
	if a.verb != patch {
		return a, now
	}
	a.deleted = !e.static && e.gone && e.dying()
	if a.pod == nil {
		a.pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: e.key.Namespace, Name: e.key.Name, UID: e.uid}, Status: e.has.status}
	}
	a.status = a.wanted(&e.has.status, e.moved)
	switch {
	case !e.same(&a):
		if e.since.IsZero() {
			e.since, a.since = now, now
		}
		return a, e.when(&a.status)
	case a.deleted:
		a.verb = remove
	default:
		a.verb = nothing
	}
	return a, now
}

// same says whether there is nothing to say, or nothing but what the server does not take.
func (e *entry) same(a *act) bool {
	if equality.Semantic.DeepEqual(&a.status, &e.has.status) {
		return true
	}
	if e.residual == "" {
		return false
	}
	d, err := diff(&e.has.status, &a.status)
	return err == nil && string(d) == e.residual
}

// podVerb is what is to be done about a pod of the server. patch is only if there is something to say.
func (e *entry) podVerb(w *Writer) verb {
	switch {
	case e.absent, e.want == nil && !e.gone:
		return nothing
	case e.doubt:
		return read
	case e.has == nil && !w.listed:
		return waits // the list will tell of all of them at once
	case e.has == nil:
		return read
	case e.removed == e.has.uid:
		return nothing // its finalizers keep it
	}
	return patch
}

// mirrorVerb is what is to be done about a static pod.
func (e *entry) mirrorVerb(w *Writer) verb {
	switch {
	case e.doubt:
		return read
	case e.want == nil && e.has == nil:
		return nothing
	case !w.listed:
		return waits
	case e.want == nil && !e.gone && w.settled.IsZero():
		return nothing // it may be put yet
	case e.has != nil && (e.want == nil || e.stale()):
		if e.removed == e.has.uid {
			return waits // for its finalizers
		}
		return remove
	case e.has != nil:
		return patch
	case cannotMirror(e.want) != "":
		answers{w}.refused(e, errMirror{cannotMirror(e.want)})
		return nothing
	case e.want.DeletionTimestamp != nil:
		return nothing
	case w.cfg.NodeUID() == "":
		return waits
	}
	return create
}

// stale says whether the mirror pod there is, is not the one that there should be.
func (e *entry) stale() bool {
	return e.has.deleting || e.has.hash != e.want.Annotations[desired.AnnotationHash] || cannotMirror(e.want) != "" ||
		final(e.has.status.Phase) && !final(e.want.Status.Phase) // a static pod returns, and what is final does not
}

// dying says whether the server waits for the end of the pod.
func (e *entry) dying() bool { return e.ending || e.has != nil && e.has.deleting }

// when is the time to send what is to be said.
func (e *entry) when(st *corev1.PodStatus) time.Time {
	ready := func(list []corev1.PodCondition) bool {
		c := find(list, corev1.PodReady)
		return c != nil && c.Status == corev1.ConditionTrue
	}
	ending := e.dying() || e.want != nil && e.want.DeletionTimestamp != nil
	switch {
	case e.gone, final(st.Phase):
		return time.Time{}
	case ending:
		return e.since.Add(quietEnding)
	case st.Phase != e.has.status.Phase, ready(st.Conditions) != ready(e.has.status.Conditions):
		return time.Time{}
	case st.Phase == corev1.PodPending && starting(st):
		return e.since.Add(quietStarting)
	}
	return e.since.Add(quiet)
}

// starting says whether a status tells of nothing but a pod on its way, as every pod is for a while.
func starting(st *corev1.PodStatus) bool {
	if st.Reason != "" || st.Message != "" {
		return false
	}
	for _, list := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses, st.EphemeralContainerStatuses} {
		for i := range list {
			s := &list[i].State
			if w := s.Waiting; w != nil && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" ||
				s.Terminated != nil && s.Terminated.ExitCode != 0 {
				return false
			}
		}
	}
	return true
}
