package daemonset

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// byNode is the index of the pods of sets by the nodes that they are for.
const byNode = "daemonNodes"

func onNode(o any) ([]string, error) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return nil, nil
	}
	if c := metav1.GetControllerOfNoCopy(p); c == nil || c.Kind != kind.Kind || nodeOf(p) == "" {
		return nil, nil
	}
	return []string{nodeOf(p)}, nil
}

// ofNode are the sets for which a node is another one than their pods say, or than it was, which is in what a set says
// of itself. Nodes say every few minutes that they live, which changes nothing for a set, and there may be thousands of
// both.
func (k *keeper) ofNode(before, after any) []cache.ObjectName {
	was, _ := before.(*corev1.Node)
	n, _ := after.(*corev1.Node)
	switch {
	case n == nil && was == nil, n != nil && was != nil && alike(was, n):
		return nil
	case n == nil:
		n = was
	}
	all, err := k.sets.List(labels.Everything())
	if err != nil {
		return nil // a lister of what is in memory does not fail
	}
	_, gone := k.nodes.Get(n.Name)
	has := k.on(n.Name)
	var keys []cache.ObjectName
	for _, d := range all {
		pod := bound(d)
		run, stay := eligible(pod, n)
		changed := false
		if was != nil {
			ran, stayed := eligible(pod, was)
			changed = run != ran || stay != stayed
		}
		if gone != nil || changed || run != has[d.UID] || !stay && has[d.UID] {
			keys = append(keys, cache.MetaObjectToName(d))
		}
	}
	return keys
}

// on are the sets that have a pod for a node.
func (k *keeper) on(node string) map[types.UID]bool {
	found, err := k.index.ByIndex(byNode, node)
	if err != nil {
		return nil // the index is made before it is asked
	}
	has := map[types.UID]bool{}
	for _, o := range found {
		if p, ok := o.(*corev1.Pod); ok {
			has[metav1.GetControllerOfNoCopy(p).UID] = true
		}
	}
	return has
}

// alike says whether two states of a node make no difference for which sets have pods there.
func alike(a, b *corev1.Node) bool {
	return maps.Equal(a.Labels, b.Labels) && a.Spec.Unschedulable == b.Spec.Unschedulable && equality.Semantic.DeepEqual(a.Spec.Taints, b.Spec.Taints)
}
