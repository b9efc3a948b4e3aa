package queue

import (
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/cluster"
)

// Nominator knows which pods are to come to which nodes once others have made room: the room is theirs, as against pods
// of less priority.
type Nominator struct {
	mu    sync.RWMutex
	nodes map[string][]fwk.PodInfo
	pods  map[types.UID]string
}

var _ fwk.PodNominator = (*Nominator)(nil)

// NewNominator makes a nominator that knows of none.
func NewNominator() *Nominator {
	return &Nominator{nodes: map[string][]fwk.PodInfo{}, pods: map[types.UID]string{}}
}

// AddNominatedPod implements [fwk.PodNominator].
func (n *Nominator) AddNominatedPod(_ klog.Logger, pod fwk.PodInfo, info *fwk.NominatingInfo) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.add(pod, info)
}

func (n *Nominator) add(pod fwk.PodInfo, info *fwk.NominatingInfo) {
	uid, node := pod.GetPod().UID, pod.GetPod().Status.NominatedNodeName
	n.remove(uid)
	if info.Mode() == fwk.ModeOverride {
		node = info.NominatedNodeName
	}
	if node == "" {
		return
	}
	n.pods[uid] = node
	n.nodes[node] = append(n.nodes[node], pod)
}

// DeleteNominatedPodIfExists implements [fwk.PodNominator].
func (n *Nominator) DeleteNominatedPodIfExists(pod *corev1.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.remove(pod.UID)
}

func (n *Nominator) remove(uid types.UID) {
	node, there := n.pods[uid]
	if !there {
		return
	}
	delete(n.pods, uid)
	// The list is made anew: somebody may be reading the one before.
	left := slices.DeleteFunc(slices.Clone(n.nodes[node]), func(p fwk.PodInfo) bool { return p.GetPod().UID == uid })
	if len(left) == 0 {
		delete(n.nodes, node)
		return
	}
	n.nodes[node] = left
}

// next keeps room for a pod where the API says that it is to come to, now that it is about to be attempted. Whoever
// may write the status of a pod says that, of any node and of any number of pods: the room of one that waits for
// something else would be kept for nobody.
func (n *Nominator) next(p *Pod) {
	if pod := p.Pod(); pod.Status.NominatedNodeName != "" && pod.DeletionTimestamp == nil && n.Node(pod.UID) == "" {
		n.AddNominatedPod(klog.Logger{}, p.info, nil)
	}
}

// told follows what the API says of where a pod is to come to, if it is about to be attempted or has room.
func (n *Nominator) told(p *Pod, info *cluster.PodInfo) {
	switch pod := info.GetPod(); {
	case pod.DeletionTimestamp != nil:
		n.DeleteNominatedPodIfExists(pod) // it never comes
	case p.where == inActive || p.where == inAside || n.Node(pod.UID) != "":
		n.UpdateNominatedPod(klog.Logger{}, p.Pod(), info)
	}
}

// UpdateNominatedPod implements [fwk.PodNominator].
func (n *Nominator) UpdateNominatedPod(_ klog.Logger, before *corev1.Pod, after fwk.PodInfo) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var info *fwk.NominatingInfo
	// What the API says of it is late while it says nothing: what is known here stands.
	node, there := n.pods[before.UID]
	if there && before.Status.NominatedNodeName == "" && after.GetPod().Status.NominatedNodeName == "" {
		info = &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride, NominatedNodeName: node}
	}
	n.remove(before.UID)
	n.add(after, info)
}

// NominatedPodsForNode implements [fwk.PodNominator].
func (n *Nominator) NominatedPodsForNode(node string) []fwk.PodInfo {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if len(n.nodes) == 0 {
		return nil
	}
	return slices.Clone(n.nodes[node])
}

// Node is where a pod is to come to; empty: nowhere that is known.
func (n *Nominator) Node(uid types.UID) string {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.pods[uid]
}

// Empty says whether no pod is nominated, so that nobody need ask for each node.
func (n *Nominator) Empty() bool {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return len(n.pods) == 0
}
