package cluster

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	ndf "k8s.io/component-helpers/nodedeclaredfeatures"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// NodeInfo is a node, the pods that are or will be on it, and what these come to.
type NodeInfo struct {
	node *corev1.Node
	pods podLists

	usedPorts   fwk.HostPortInfo
	requested   Resource
	nonZero     Resource
	allocatable Resource
	images      map[string]*fwk.ImageStateSummary
	claims      map[string]int
	features    ndf.FeatureSet
	generation  int64
}

// podLists are the pods of a node, and those of them that a plugin would otherwise look for.
type podLists struct {
	all, affinity, antiAffinity, beyondHost []fwk.PodInfo
}

var _ fwk.NodeInfo = (*NodeInfo)(nil)

// NewNodeInfo makes a node of pods, whose own object is still to be set. It is meant for tests: pods whose affinity
// cannot be read are there without it.
func NewNodeInfo(pods ...*corev1.Pod) *NodeInfo {
	n := &NodeInfo{usedPorts: fwk.HostPortInfo{}, claims: map[string]int{}, images: map[string]*fwk.ImageStateSummary{}}
	for _, p := range pods {
		n.AddPod(p)
	}
	return n
}

// Node implements [fwk.NodeInfo].
func (n *NodeInfo) Node() *corev1.Node {
	if n == nil {
		return nil
	}
	return n.node
}

// GetPods implements [fwk.NodeInfo].
func (n *NodeInfo) GetPods() []fwk.PodInfo { return n.pods.all }

// GetPodsWithAffinity implements [fwk.NodeInfo].
func (n *NodeInfo) GetPodsWithAffinity() []fwk.PodInfo { return n.pods.affinity }

// GetPodsWithRequiredAntiAffinity implements [fwk.NodeInfo].
func (n *NodeInfo) GetPodsWithRequiredAntiAffinity() []fwk.PodInfo { return n.pods.antiAffinity }

// GetPodsWithRequiredNonHostScopedAntiAffinity implements [fwk.NodeInfo].
func (n *NodeInfo) GetPodsWithRequiredNonHostScopedAntiAffinity() []fwk.PodInfo {
	return n.pods.beyondHost
}

// GetUsedPorts implements [fwk.NodeInfo].
func (n *NodeInfo) GetUsedPorts() fwk.HostPortInfo { return n.usedPorts }

// GetRequested implements [fwk.NodeInfo].
func (n *NodeInfo) GetRequested() fwk.Resource { return &n.requested }

// GetNonZeroRequested implements [fwk.NodeInfo].
func (n *NodeInfo) GetNonZeroRequested() fwk.Resource { return &n.nonZero }

// GetAllocatable implements [fwk.NodeInfo].
func (n *NodeInfo) GetAllocatable() fwk.Resource { return &n.allocatable }

// GetImageStates implements [fwk.NodeInfo].
func (n *NodeInfo) GetImageStates() map[string]*fwk.ImageStateSummary { return n.images }

// GetPVCRefCounts implements [fwk.NodeInfo].
func (n *NodeInfo) GetPVCRefCounts() map[string]int { return n.claims }

// GetGeneration implements [fwk.NodeInfo].
func (n *NodeInfo) GetGeneration() int64 { return n.generation }

// GetNodeDeclaredFeatures implements [fwk.NodeInfo].
func (n *NodeInfo) GetNodeDeclaredFeatures() ndf.FeatureSet { return n.features }

// String implements [fwk.NodeInfo].
func (n *NodeInfo) String() string {
	name := "(gone)"
	if n.node != nil {
		name = n.node.Name
	}
	return fmt.Sprintf("node %s: %d pods, requested %+v of %+v", name, len(n.pods.all), n.requested, n.allocatable)
}

// Snapshot implements [fwk.NodeInfo]. What is the same for all copies until it is replaced is shared.
func (n *NodeInfo) Snapshot() fwk.NodeInfo { return n.clone() }

func (n *NodeInfo) clone() *NodeInfo {
	c := *n
	c.requested, c.nonZero, c.allocatable = n.requested.value(), n.nonZero.value(), n.allocatable.value()
	c.pods = podLists{
		slices.Clone(n.pods.all), slices.Clone(n.pods.affinity), slices.Clone(n.pods.antiAffinity), slices.Clone(n.pods.beyondHost),
	}
	c.claims = maps.Clone(n.claims)
	c.usedPorts = make(fwk.HostPortInfo, len(n.usedPorts))
	for ip, ports := range n.usedPorts {
		c.usedPorts[ip] = maps.Clone(ports)
	}
	return &c
}

// become has a node be a copy of another one, in the memory that it has: a snapshot is brought up to date thousands of
// times a second.
func (n *NodeInfo) become(other *NodeInfo) {
	had := *n
	*n = *other
	n.requested, n.nonZero, n.allocatable = other.requested.value(), other.nonZero.value(), other.allocatable.value()
	n.pods = podLists{
		refill(had.pods.all, other.pods.all), refill(had.pods.affinity, other.pods.affinity),
		refill(had.pods.antiAffinity, other.pods.antiAffinity), refill(had.pods.beyondHost, other.pods.beyondHost),
	}
	n.claims = had.claims
	clear(n.claims)
	maps.Copy(n.claims, other.claims)
	n.usedPorts = had.usedPorts
	clear(n.usedPorts)
	for ip, ports := range other.usedPorts {
		n.usedPorts[ip] = maps.Clone(ports)
	}
}

func refill(had, with []fwk.PodInfo) []fwk.PodInfo {
	if len(had) > len(with) {
		clear(had[len(with):]) // what is not there any more is not to be kept in memory
	}
	return append(had[:0], with...)
}

// AddPod is AddPodInfo of a pod that is read first.
func (n *NodeInfo) AddPod(pod *corev1.Pod) {
	p, _ := NewPodInfo(pod) // the API server has refused terms that cannot be read
	n.AddPodInfo(p)
}

// AddPodInfo implements [fwk.NodeInfo].
func (n *NodeInfo) AddPodInfo(p fwk.PodInfo) {
	n.pods.all = append(n.pods.all, p)
	if hasAffinity(p) {
		n.pods.affinity = append(n.pods.affinity, p)
	}
	if len(p.GetRequiredAntiAffinityTerms()) > 0 {
		n.pods.antiAffinity = append(n.pods.antiAffinity, p)
	}
	if beyondHost(p) {
		n.pods.beyondHost = append(n.pods.beyondHost, p)
	}
	n.count(p, 1)
}

// RemovePod implements [fwk.NodeInfo].
func (n *NodeInfo) RemovePod(_ klog.Logger, pod *corev1.Pod) error {
	i := slices.IndexFunc(n.pods.all, func(p fwk.PodInfo) bool { return p.GetPod().UID == pod.UID })
	if i < 0 {
		return fmt.Errorf("remove pod %s/%s from node %s: it is not there", pod.Namespace, pod.Name, n.Node().GetName())
	}
	p := n.pods.all[i]
	n.pods.all = without(n.pods.all, pod)
	if hasAffinity(p) {
		n.pods.affinity = without(n.pods.affinity, pod)
	}
	if len(p.GetRequiredAntiAffinityTerms()) > 0 {
		n.pods.antiAffinity = without(n.pods.antiAffinity, pod)
	}
	if beyondHost(p) {
		n.pods.beyondHost = without(n.pods.beyondHost, pod)
	}
	n.count(p, -1)
	return nil
}

// without takes a pod out of a list whose order does not matter.
func without(list []fwk.PodInfo, pod *corev1.Pod) []fwk.PodInfo {
	for i, p := range list {
		if p.GetPod().UID == pod.UID {
			last := len(list) - 1
			list[i], list[last] = list[last], nil
			return list[:last]
		}
	}
	return list
}

// count adds what a pod takes of the node, or gives it back.
func (n *NodeInfo) count(p fwk.PodInfo, sign int64) {
	n.generation++
	resources := p.CalculateResource()
	n.requested.plus(sign, resources.Resource)
	n.nonZero.MilliCPU += sign * resources.Non0CPU
	n.nonZero.Memory += sign * resources.Non0Mem
	pod := p.GetPod()
	forPorts(pod, func(ip, protocol string, port int32) {
		if sign > 0 {
			n.usedPorts.Add(ip, protocol, port)
		} else {
			n.usedPorts.Remove(ip, protocol, port)
		}
	})
	for key := range claimsOf(pod) {
		if n.claims[key] += int(sign); n.claims[key] <= 0 {
			delete(n.claims, key)
		}
	}
}

// forPorts calls f with each port of the host that a pod uses: of its containers and of those beside them that go on
// running.
func forPorts(pod *corev1.Pod, f func(ip, protocol string, port int32)) {
	each := func(c *corev1.Container) {
		for _, p := range c.Ports {
			f(p.HostIP, string(p.Protocol), p.HostPort)
		}
	}
	for i := range pod.Spec.Containers {
		each(&pod.Spec.Containers[i])
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			each(c)
		}
	}
}

// claimsOf yields the keys of the claims that a pod names in its volumes.
func claimsOf(pod *corev1.Pod) func(func(string) bool) {
	return func(yield func(string) bool) {
		for i := range pod.Spec.Volumes {
			claim := pod.Spec.Volumes[i].PersistentVolumeClaim
			if claim != nil && !yield(pod.Namespace+"/"+claim.ClaimName) {
				return
			}
		}
	}
}

// SetNode implements [fwk.NodeInfo].
func (n *NodeInfo) SetNode(node *corev1.Node) {
	n.node = node
	n.allocatable = *NewResource(node.Status.Allocatable)
	declared := node.Status.DeclaredFeatures
	if !slices.IsSorted(declared) {
		declared = slices.Sorted(slices.Values(declared))
	}
	n.features = ndf.DefaultFramework.TryMap(declared)
	n.generation++
}

// forget has the node be one whose object is gone while pods are still on it.
func (n *NodeInfo) forget() {
	n.node = nil
	n.allocatable = Resource{}
	n.images = map[string]*fwk.ImageStateSummary{}
	n.generation++
}
