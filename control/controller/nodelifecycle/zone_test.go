package nodelifecycle

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// TestZones says how fast nodes are given up.
func TestZones(t *testing.T) {
	for _, c := range []struct {
		z     zone
		apart time.Duration
		none  bool
	}{
		{zone{9, 1}, evictEvery, false},
		{zone{1, 2}, evictEvery, false},
		{zone{0, 3}, evictEvery, false},
		{zone{10, 10}, evictEvery, false},
		{zone{9, 11}, evictEvery, true},
		{zone{2, 3}, evictEvery, true},
		{zone{20, 40}, evictSlowly, false},
		{zone{0, 400}, evictEvery, false},
	} {
		if apart, none := c.z.apart(); apart != c.apart || none != c.none {
			t.Errorf("%v: %s, %v", c.z, apart, none)
		}
	}
}

// cluster is nodes of zones a and b, and who keeps them.
type cluster struct {
	*keeper
	store cache.Indexer
	at    time.Time
}

func newCluster() *cluster {
	store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	c := &cluster{store: store, at: time.Unix(1000, 0)}
	c.keeper = &keeper{nodes: corelisters.NewNodeLister(store), evicted: map[string]time.Time{}, now: func() time.Time { return c.at }}
	return c
}

func (c *cluster) put(zone string, i int, is corev1.ConditionStatus) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(zone, i), Labels: map[string]string{corev1.LabelTopologyZone: zone}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: is}}},
	}
	_ = c.store.Add(n)
	return n
}

// TestEvict gives up nodes of two zones apart, keeps those of a zone most of which is not heard of, and all when none
// is.
func TestEvict(t *testing.T) {
	c := newCluster()
	var a, b []*corev1.Node
	for i := range 10 {
		a, b = append(a, c.put("a", i, corev1.ConditionTrue)), append(b, c.put("b", i, corev1.ConditionTrue))
	}
	asked := func(n *corev1.Node, want string, again time.Duration) {
		t.Helper()
		if got, left, err := c.evict(n); err != nil || got != want || left != again {
			t.Errorf("node %s: %q, again in %s: %v", n.Name, got, left, err)
		}
	}
	for i := range 2 {
		a[i], b[i] = c.put("a", i, corev1.ConditionUnknown), c.put("b", i, corev1.ConditionFalse)
	}
	asked(a[0], corev1.TaintNodeUnreachable, 0)
	asked(b[0], corev1.TaintNodeNotReady, 0) // of another zone
	asked(a[1], "", evictEvery)
	c.at = c.at.Add(evictEvery)
	asked(a[1], corev1.TaintNodeUnreachable, 0)
	for i := range 6 {
		b[i] = c.put("b", i, corev1.ConditionUnknown)
	}
	c.at = c.at.Add(time.Hour)
	asked(b[5], "", evictEvery)
	b[5].Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute}}
	asked(b[5], corev1.TaintNodeUnreachable, 0) // given up before
	for i := range 10 {
		a[i], b[i] = c.put("a", i, corev1.ConditionUnknown), c.put("b", i, corev1.ConditionUnknown)
	}
	asked(a[3], "", 0)
	b[5].Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute}}
	asked(b[5], "", 0) // it is taken back
	a[9] = c.put("a", 9, corev1.ConditionTrue)
	asked(b[1], "", evictEvery)
	c.at = c.at.Add(evictEvery)
	asked(b[1], corev1.TaintNodeUnreachable, 0) // a zone of which nothing is left, while another one is there
	asked(a[1], "", evictEvery)
}
