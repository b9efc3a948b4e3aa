// Package cluster is the cluster as the scheduler sees it: nodes with the pods on them, among these pods that were
// given a node a moment ago and that the API does not say so of yet. A snapshot of it costs what has changed since the
// last.
package cluster

import (
	"fmt"
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/klog/v2"
)

// Cache is the nodes and their pods by what the API tells of them, in any order and more than once, and by what was
// decided and is not told of yet. A pod is assumed from when a node was chosen for it until the API says that it is
// bound, or somebody forgets it: a node is never given twice in between.
type Cache struct {
	mu    sync.Mutex
	nodes map[string]*entry
	pods  map[types.UID]*held
	order order
	// newest and oldest are the ends of the list of nodes by when they have changed.
	newest, oldest *entry
	generation     int64
	images         images
	objects        int // nodes that have an object
	// wide counts changes that concern other nodes than the one that has changed: which nodes there are, with which
	// labels, and which images. Opinions counts those of pods with affinity, which are for or against pods on other
	// nodes.
	wide, opinions int64
}

// entry is a node in the list.
type entry struct {
	name         string
	info         *NodeInfo
	newer, older *entry
	// pictured is which state of the images of all nodes the node's own are of.
	pictured int64
}

// held is a pod of a node.
type held struct {
	info    *PodInfo
	node    string
	assumed bool
}

// NewCache makes a cache of no nodes.
func NewCache() *Cache {
	return &Cache{nodes: map[string]*entry{}, pods: map[types.UID]*held{}, order: newOrder()}
}

// SetNode has a node be as the API has it.
func (c *Cache) SetNode(node *corev1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entry(node.Name)
	before := e.info.node
	if before != nil && before.UID == node.UID && older(node.ResourceVersion, before.ResourceVersion) {
		return
	}
	if before == nil {
		c.objects++
	}
	images := c.images.changed
	c.order.set(node)
	c.images.change(before, node)
	if before == nil || !maps.Equal(before.Labels, node.Labels) || images != c.images.changed {
		c.wide++
	}
	e.info.SetNode(node)
	e.pictured = 0
	c.touch(e)
}

// DeleteNode has a node be gone. Pods that are still on it stay known until they are gone, too: a node that comes back
// by the same name finds them.
func (c *Cache) DeleteNode(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.nodes[name]
	if e == nil || e.info.node == nil {
		return
	}
	c.objects--
	c.wide++
	c.order.remove(name)
	c.images.change(e.info.node, nil)
	e.info.forget()
	c.touch(e)
	c.prune(e)
}

// SetPod has a pod be as the API has it, bound to a node. One that has ended takes nothing of its node any more.
func (c *Cache) SetPod(pod *corev1.Pod) {
	info, _ := NewPodInfo(pod) // the API server has refused terms that cannot be read
	c.mu.Lock()
	defer c.mu.Unlock()
	if Ended(pod) || pod.Spec.NodeName == "" {
		c.take(pod.UID)
		return
	}
	h := c.pods[pod.UID]
	if h == nil {
		c.put(&held{info: info, node: pod.Spec.NodeName})
		return
	}
	if !h.assumed && older(pod.ResourceVersion, h.info.pod.ResourceVersion) {
		return
	}
	opinions := c.opinions
	c.take(pod.UID)
	c.put(&held{info: info, node: pod.Spec.NodeName})
	if h.node == pod.Spec.NodeName {
		c.opinions = opinions // a pod's affinity is what it was when it was made
	}
}

// DeletePod has a pod be gone, assumed or not.
func (c *Cache) DeletePod(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.take(uid)
}

// Assume has a pod be on the node that its specification names, before the API says so.
func (c *Cache) Assume(pod *PodInfo) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.pods[pod.pod.UID]; h != nil {
		return fmt.Errorf("assume pod %s/%s on node %s: it is on %s", pod.pod.Namespace, pod.pod.Name, pod.pod.Spec.NodeName, h.node)
	}
	c.put(&held{info: pod, node: pod.pod.Spec.NodeName, assumed: true})
	return nil
}

// Forget undoes Assume, if the API has not said in between that the pod is bound. It is safe to call in any case.
func (c *Cache) Forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.pods[uid]; h != nil && h.assumed {
		c.take(uid)
	}
}

// Assumed says whether a pod was given a node that the API does not say it is bound to yet.
func (c *Cache) Assumed(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.pods[uid]
	return h != nil && h.assumed
}

// Pod is a pod of a node, assumed or bound; nil: there is none.
func (c *Cache) Pod(uid types.UID) *corev1.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.pods[uid]; h != nil {
		return h.info.pod
	}
	return nil
}

// Nodes is how many there are.
func (c *Cache) Nodes() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.objects
}

// Ended says whether a pod's containers do not run any more and never will again.
func Ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// older says whether one version of an object is before another one. Of versions that are no numbers nothing is known.
func older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

func (c *Cache) put(h *held) {
	e := c.entry(h.node)
	e.info.AddPodInfo(h.info)
	c.pods[h.info.pod.UID] = h
	c.touch(e)
	if hasAffinity(h.info) {
		c.opinions++
	}
}

func (c *Cache) take(uid types.UID) {
	h := c.pods[uid]
	if h == nil {
		return
	}
	delete(c.pods, uid)
	e := c.nodes[h.node]
	_ = e.info.RemovePod(klog.Logger{}, h.info.pod) // what was put is there
	c.touch(e)
	if hasAffinity(h.info) {
		c.opinions++
	}
	c.prune(e)
}

// entry is the node of a name. A pod may be told of before its node is.
func (c *Cache) entry(name string) *entry {
	e := c.nodes[name]
	if e == nil {
		e = &entry{name: name, info: NewNodeInfo()}
		c.nodes[name] = e
	}
	return e
}

// prune removes a node that has neither an object nor pods.
func (c *Cache) prune(e *entry) {
	if e.info.node == nil && len(e.info.pods.all) == 0 {
		c.unlink(e)
		delete(c.nodes, e.name)
	}
}

// touch has a node be the one that has changed last.
func (c *Cache) touch(e *entry) {
	c.generation++
	e.info.generation = c.generation
	if c.newest == e {
		return
	}
	c.unlink(e)
	e.older = c.newest
	if c.newest != nil {
		c.newest.newer = e
	}
	c.newest = e
	if c.oldest == nil {
		c.oldest = e
	}
}

func (c *Cache) unlink(e *entry) {
	if e.newer != nil {
		e.newer.older = e.older
	} else if c.newest == e {
		c.newest = e.older
	}
	if e.older != nil {
		e.older.newer = e.newer
	} else if c.oldest == e {
		c.oldest = e.newer
	}
	e.newer, e.older = nil, nil
}
