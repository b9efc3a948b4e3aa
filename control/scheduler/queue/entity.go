package queue

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/cluster"
)

// Pod is a pod that waits for a node, and what has become of attempts to find one. Who has popped it owns it until it
// is given back.
type Pod struct {
	info  *cluster.PodInfo
	tries tries
	// timestamp is when it came to the queue, or came back; first is when it was attempted first.
	timestamp time.Time
	first     *time.Time
	expires   time.Time

	unschedulable, pending sets.Set[string]

	gating       string
	gatingEvents []fwk.ClusterEvent

	where place
	index int // in the heap of that place
}

// tries are how many attempts there were, and how they went.
type tries struct{ all, rejected, errors int }

// place is where in the queue a pod is.
type place int

const (
	nowhere place = iota
	inActive
	inAside // as in active, but others are first
	inBackoff
	inErrorBackoff
	inUnschedulable
)

// String is what metrics call a place.
func (p place) String() string {
	switch p {
	case inActive, inAside:
		return "active"
	case inBackoff, inErrorBackoff:
		return "backoff"
	case inUnschedulable:
		return "unschedulable"
	case nowhere:
	}
	return "nowhere"
}

var _ fwk.QueuedEntityInfo = (*Pod)(nil)

func newPod(info *cluster.PodInfo, now time.Time) *Pod {
	return &Pod{info: info, timestamp: now, unschedulable: sets.New[string](), pending: sets.New[string]()}
}

// Info is the pod.
func (p *Pod) Info() *cluster.PodInfo { return p.info }

// Pod is the pod's object.
func (p *Pod) Pod() *corev1.Pod { return p.info.GetPod() }

// Reject notes which plugins have rejected the pod: for good until something changes, or until what they wait for has
// come.
func (p *Pod) Reject(unschedulable, pending sets.Set[string]) {
	p.unschedulable, p.pending = unschedulable, pending
}

// Type implements [fwk.QueuedEntityInfo].
func (p *Pod) Type() fwk.EntityKeyType { return fwk.PodKeyType }

// GetPriority implements [fwk.QueuedEntityInfo].
func (p *Pod) GetPriority() int32 {
	if priority := p.Pod().Spec.Priority; priority != nil {
		return *priority
	}
	return 0
}

// GetTimestamp implements [fwk.QueuedEntityInfo].
func (p *Pod) GetTimestamp() time.Time { return p.timestamp }

// GetAttempts implements [fwk.QueuedEntityInfo].
func (p *Pod) GetAttempts() int { return p.tries.all }

// GetBackoffExpiration implements [fwk.QueuedEntityInfo].
func (p *Pod) GetBackoffExpiration() time.Time { return p.expires }

// GetUnschedulableCount implements [fwk.QueuedEntityInfo].
func (p *Pod) GetUnschedulableCount() int { return p.tries.rejected }

// GetConsecutiveErrorsCount implements [fwk.QueuedEntityInfo].
func (p *Pod) GetConsecutiveErrorsCount() int { return p.tries.errors }

// GetInitialAttemptTimestamp implements [fwk.QueuedEntityInfo].
func (p *Pod) GetInitialAttemptTimestamp() *time.Time { return p.first }

// GetUnschedulablePlugins implements [fwk.QueuedEntityInfo].
func (p *Pod) GetUnschedulablePlugins() sets.Set[string] { return p.unschedulable }

// GetPendingPlugins implements [fwk.QueuedEntityInfo].
func (p *Pod) GetPendingPlugins() sets.Set[string] { return p.pending }

// GetGatingPlugin implements [fwk.QueuedEntityInfo].
func (p *Pod) GetGatingPlugin() string { return p.gating }

// GetGatingPluginEvents implements [fwk.QueuedEntityInfo].
func (p *Pod) GetGatingPluginEvents() []fwk.ClusterEvent { return p.gatingEvents }

// pods is a heap of pods.
type pods struct {
	list []*Pod
	less func(a, b *Pod) bool
}

// Len implements [container/heap.Interface].
func (h *pods) Len() int { return len(h.list) }

// Less implements [container/heap.Interface].
func (h *pods) Less(i, j int) bool { return h.less(h.list[i], h.list[j]) }

// Swap implements [container/heap.Interface].
func (h *pods) Swap(i, j int) {
	h.list[i], h.list[j] = h.list[j], h.list[i]
	h.list[i].index, h.list[j].index = i, j
}

// Push implements [container/heap.Interface].
func (h *pods) Push(x any) {
	p := x.(*Pod) // only pods are pushed
	p.index = len(h.list)
	h.list = append(h.list, p)
}

// Pop implements [container/heap.Interface].
func (h *pods) Pop() any {
	last := len(h.list) - 1
	p := h.list[last]
	h.list[last] = nil
	h.list = h.list[:last]
	return p
}
