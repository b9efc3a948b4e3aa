package defaultpreemption

import (
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
)

// remembered is how long it is remembered what was ended for a pod. By then the API says it: where the pod is to come
// to, and who goes by whom.
const remembered = time.Minute

// ending are the pods for which others are just being ended, and what was ended for which pod.
type ending struct {
	mu   sync.Mutex
	pods map[types.UID]bool
	last map[types.UID]sacrifice
}

// sacrifice is what was ended for a pod, while the API may not say it yet: an attempt that comes before it does would
// find others to end, for nothing.
type sacrifice struct {
	nodes   []string
	victims sets.Set[types.UID]
	since   time.Time
}

func (e *ending) set(uid types.UID, on bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if on {
		e.pods[uid] = true
	} else {
		delete(e.pods, uid)
	}
}

func (e *ending) has(uid types.UID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pods[uid]
}

// begin remembers what is to end for pods.
func (e *ending) begin(pods, victims []*corev1.Pod) {
	s := sacrifice{victims: sets.New[types.UID](), since: time.Now()}
	for _, v := range victims {
		s.victims.Insert(v.UID)
		if !slices.Contains(s.nodes, v.Spec.NodeName) {
			s.nodes = append(s.nodes, v.Spec.NodeName)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for uid, old := range e.last {
		if time.Since(old.since) > remembered {
			delete(e.last, uid)
		}
	}
	for _, pod := range pods {
		e.last[pod.UID] = s
	}
}

// forget is called when a pod does not wait any more for what was ended for it.
func (e *ending) forget(pods ...*corev1.Pod) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, pod := range pods {
		delete(e.last, pod.UID)
	}
}

// left are the nodes where something still is that was ended for a pod.
func (e *ending) left(uid types.UID, nodes fwk.NodeInfoLister) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	s, is := e.last[uid]
	if !is || time.Since(s.since) > remembered {
		return nil
	}
	var left []string
	for _, name := range s.nodes {
		node, err := nodes.Get(name)
		if err == nil && slices.ContainsFunc(node.GetPods(), func(p fwk.PodInfo) bool { return s.victims.Has(p.GetPod().UID) }) {
			left = append(left, name)
		}
	}
	if len(left) == 0 {
		delete(e.last, uid)
	}
	return left
}
