package inspect

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/kube"
)

// Pod is a pod as it stands when memory is short, with what counts of what it has, and what it asked for.
type Pod struct {
	UID             types.UID
	Namespace, Name string
	QOS             corev1.PodQOSClass
	Priority        int32
	Protected       bool  // it is never evicted
	Known           bool  // Usage was measured
	Usage, Request  int64 // bytes
}

// Place is where a pod is in the order in which pods are evicted for want of memory.
type Place struct {
	Pod
	Number int    // from 1 on; 0: it is not evicted
	Before string // why it goes before the next one; "" for the last
}

// Order puts pods in the order in which they are evicted for want of memory. It is that of who evicts them, of whom
// this package knows nothing.
type Order func(pods []Pod) []Place

// systemCritical is the priority from which on pods are never evicted.
const systemCritical = 2000000000

// ranking has the pods as they are ranked when memory is short, by the rules of the node's agent.
func (f forest) ranking() []Pod {
	var out []Pod
	for _, n := range f.all() {
		if n.Kind != kindPod || n.pod == nil {
			continue
		}
		rules := n.snap.Machine.Evicts
		if rules == nil {
			rules = &kube.Evicts{WorkingSet: true}
		}
		requests := resourcehelper.PodRequests(n.pod, resourcehelper.PodResourcesOptions{})
		p := Pod{
			UID: n.pod.UID, Namespace: n.pod.Namespace, Name: n.pod.Name, QOS: kube.QoS(n.pod), Known: n.Usage.Memory.Usage > 0,
			Usage: int64(evictedFor(&n.Usage.Memory, rules)), Request: requests.Memory().Value(),
		}
		if n.pod.Spec.Priority != nil {
			p.Priority = *n.pod.Spec.Priority
		}
		p.Protected = p.Priority >= systemCritical || rules.SparesStatic && isStatic(n.pod)
		out = append(out, p)
	}
	return out
}

// isStatic says whether a pod is not of an API server.
func isStatic(p *corev1.Pod) bool {
	of, ok := p.Annotations[sourceAnnotation]
	return ok && of != "api"
}

// evictedFor is what counts of the memory that a pod has.
func evictedFor(m *cgroups.Memory, rules *kube.Evicts) uint64 {
	if rules.WorkingSet {
		return m.WorkingSet
	}
	used := m.Usage - min(m.Usage, m.InactiveFile+m.ActiveFile)
	if rules.Swap {
		used += m.Swap
	}
	return used
}

// explainEviction says which place a pod has, and before whom.
func explainEviction(n *Node, order Order) ([]string, *evictionJSON) {
	places := order(n.snap.nodes().ranking())
	ranked := 0
	for i := range places {
		if places[i].Number > 0 {
			ranked++
		}
	}
	for i := range places {
		p := &places[i]
		if n.pod == nil || p.UID != n.pod.UID {
			continue
		}
		if p.Number == 0 {
			return []string{"it is not evicted, whatever the node is short of."},
				&evictionJSON{0, ranked, n.Usage.Memory.WorkingSet, p.Usage, p.Request, p.Priority}
		}
		sign, over := "above", p.Usage-p.Request
		if over <= 0 {
			sign, over = "below", -over
		}
		text := fmt.Sprintf("under memory pressure it is number %d of %d: usage %s - request %s = %s %s it, priority %d",
			p.Number, ranked, b(uint64(p.Usage)), b(uint64(p.Request)), b(uint64(over)), sign, p.Priority)
		if !p.Known {
			text = fmt.Sprintf("under memory pressure it is number %d of %d, since its usage is not known", p.Number, ranked)
		} else if p.Before != "" {
			text += "; " + p.Before
		}
		return []string{text + "."}, &evictionJSON{p.Number, ranked, n.Usage.Memory.WorkingSet, p.Usage, p.Request, p.Priority}
	}
	return []string{"its rank is not known without its specification."}, nil
}
