package apiserver

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/berth-node/berth/agent/desired"
)

// seen is a pod as the server is known to have it. The specification is not kept: it would be all of the memory.
type seen struct {
	uid      types.UID
	version  string
	status   corev1.PodStatus
	deleting bool
	mirror   bool
	hash     string // of the static pod that it is the mirror of
	told     bool   // by the source, not only by an answer
}

func seenOf(pod *corev1.Pod) *seen {
	return &seen{
		uid: pod.UID, version: pod.ResourceVersion, status: pod.Status, deleting: pod.DeletionTimestamp != nil,
		mirror: desired.IsMirror(pod), hash: pod.Annotations[desired.AnnotationMirror],
	}
}

// entry is what is known of one pod of the server, or of one static pod and its mirror.
type entry struct {
	key    types.NamespacedName
	uid    types.UID // "" of a static pod: that of its mirror changes
	static bool

	// What the node says.
	want    *corev1.Pod                      // as put last; nil: never, or a static pod that is gone
	moved   map[corev1.PodConditionType]bool // conditions that have changed since the server was told
	gone    bool                             // the node has nothing of it
	ending  bool                             // the server is deleting it, whatever it was seen to have
	since   time.Time                        // since when the server lacks something of this
	version int                              // counts what was put

	// What the server has.
	has      *seen // nil: not known
	absent   bool  // it has it no more, and never will again
	doubt    bool  // it has to be asked
	removed  types.UID
	residual string // what is left to say after all was said: the server does not take it
	sent     int    // the version that it was told last
	repeats  int    // how often it was told that again

	busy    bool
	due     time.Time
	trouble trouble
}

func (e *entry) pending() int {
	if e.since.IsZero() {
		return 0
	}
	return 1
}

func (e *entry) put(pod *corev1.Pod, now time.Time) {
	if e.want != nil && e.want.UID == pod.UID {
		for i := range pod.Status.Conditions {
			c := &pod.Status.Conditions[i]
			if old := find(e.want.Status.Conditions, c.Type); old != nil && old.Status != c.Status {
				if e.moved == nil {
					e.moved = map[corev1.PodConditionType]bool{}
				}
				e.moved[c.Type] = true
			}
		}
	} else {
		e.moved = nil
	}
	e.want, e.version, e.gone = pod, e.version+1, false
	if e.since.IsZero() {
		e.since = now
	}
	if e.repeats > 0 && e.trouble.failures == 0 {
		e.repeats, e.trouble.until = 0, time.Time{}
	}
	e.trouble.retry()
}

// learn takes what the server has, unless it is older than what is known.
func (e *entry) learn(has *seen) bool {
	if e.has != nil && !e.doubt && !newer(has.version, e.has.version) {
		return false
	}
	if !e.static && e.absent {
		return false // the source was slower than the server's own answer
	}
	e.has = has
	return true
}

// newer says whether a version is later than another. Of those that are no numbers, as the API promises that they are,
// the one that comes later is.
func newer(version, than string) bool {
	c, err := resourceversion.CompareResourceVersion(version, than)
	return err != nil || c > 0
}

// lose takes that the pod is gone for good.
func (e *entry) lose() {
	e.has, e.doubt, e.residual = nil, false, ""
	e.absent = !e.static
}

func (e *entry) reset() {
	e.absent, e.doubt, e.residual, e.removed = false, true, "", ""
	e.trouble = trouble{}
}

func find(list []corev1.PodCondition, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range list {
		if list[i].Type == t {
			return &list[i]
		}
	}
	return nil
}

func final(p corev1.PodPhase) bool { return p == corev1.PodSucceeded || p == corev1.PodFailed }
