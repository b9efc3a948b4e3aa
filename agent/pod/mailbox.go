package pod

import (
	"maps"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/plan"
)

// order is what a worker is asked for. The last order of a kind is the one that counts.
type order struct {
	pod *corev1.Pod  // its latest definition
	end *plan.Ending // not nil: it is to end
}

// Eviction is the order of the node that a pod end, though it is wanted. It stays known, as failed.
type Eviction struct {
	Reason       string                `json:"reason"`
	Message      string                `json:"message"`
	GraceSeconds int64                 `json:"graceSeconds"`
	Conditions   []corev1.PodCondition `json:"conditions,omitempty"`
	// Boot, when not empty, is the ID of the boot (/proc/sys/kernel/random/boot_id) with which the order ends: the pod
	// runs again when the machine does.
	Boot string `json:"boot,omitempty"`
	// Return says when the pod runs again, if pods of its origin do.
	Return Return `json:"return,omitempty"`
	// Condition, when not empty, is that of the node for which the pod ended: it does not return while that holds.
	Condition corev1.NodeConditionType `json:"condition,omitempty"`
	// Annotations are those of the event that tells of it.
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Return is when a pod runs again that was evicted.
type Return string

// Without any of these it does when its manifest has changed.
const (
	ReturnAdmitted Return = "admitted" // as soon as the node takes it
	// So too, but after a time that grows: the cause is the pod's own, and may come back with it.
	ReturnDelayed Return = "delayed"
	ReturnOpened  Return = "opened" // when the machine is not shut down after all
)

// mailbox is how others reach a worker. Each slot holds the latest of its kind, so nobody ever waits for a worker, and
// a worker that was busy finds one answer, not a queue of questions.
type mailbox struct {
	wake   chan struct{}
	order  atomic.Pointer[order]
	evict  atomic.Pointer[Eviction]
	events atomic.Pointer[[]*runtimeapi.ContainerEventResponse]
	probes atomic.Pointer[map[string]plan.ProbeResults] // by container ID
	look   atomic.Bool                                  // look at everything, whatever was told
	added  atomic.Pointer[added]                        // what was added to the pod, all of it
	object atomic.Bool                                  // an object that the pod refers to has changed
	images atomic.Pointer[map[string]time.Time]         // the names that have an image now, and since when
}

func newMailbox() *mailbox { return &mailbox{wake: make(chan struct{}, 1)} }

func (m *mailbox) ring() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *mailbox) putOrder(o order) {
	m.order.Store(&o)
	m.ring()
}

func (m *mailbox) putEviction(e Eviction) {
	m.evict.Store(&e)
	m.ring()
}

func (m *mailbox) putAdded(a *added) {
	m.added.Store(a)
	m.ring()
}

func (m *mailbox) putLook() {
	m.look.Store(true)
	m.ring()
}

func (m *mailbox) putObject() {
	m.object.Store(true)
	m.ring()
}

func (m *mailbox) putImages(names []string, at time.Time) {
	for {
		had := m.images.Load()
		all := map[string]time.Time{}
		if had != nil {
			all = maps.Clone(*had)
		}
		for _, n := range names {
			all[n] = at
		}
		if m.images.CompareAndSwap(had, &all) {
			break
		}
	}
	m.ring()
}

func (m *mailbox) putEvent(e *runtimeapi.ContainerEventResponse) {
	for {
		had := m.events.Load()
		list := []*runtimeapi.ContainerEventResponse{e}
		if had != nil {
			list = append((*had)[:len(*had):len(*had)], e)
		}
		if m.events.CompareAndSwap(had, &list) {
			break
		}
	}
	m.ring()
}

// dropProbes forgets the results of a container that does not run any more.
func (m *mailbox) dropProbes(container string) {
	for {
		had := m.probes.Load()
		if had == nil {
			return
		}
		rest := maps.Clone(*had)
		delete(rest, container)
		if m.probes.CompareAndSwap(had, &rest) {
			return
		}
	}
}

func (m *mailbox) putProbes(container string, r plan.ProbeResults) {
	for {
		had := m.probes.Load()
		all := map[string]plan.ProbeResults{}
		if had != nil {
			all = maps.Clone(*had)
		}
		all[container] = r
		if m.probes.CompareAndSwap(had, &all) {
			break
		}
	}
	m.ring()
}
