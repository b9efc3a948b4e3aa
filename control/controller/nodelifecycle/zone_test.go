package nodelifecycle

import (
	"fmt"
	"math"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// fast and slow are how long it is from one node that is given up to the next.
const fast, slow = 10 * time.Second, 100 * time.Second

// TestZones says how fast nodes are given up.
func TestZones(t *testing.T) {
	for _, c := range []struct {
		z     zone
		apart time.Duration
		none  bool
	}{
		{zone{9, 1}, fast, false},
		{zone{1, 2}, fast, false},
		{zone{0, 3}, fast, false},
		{zone{10, 10}, fast, false},
		{zone{9, 11}, askAgain, true},
		{zone{2, 3}, askAgain, true},
		{zone{20, 40}, slow, false},
		{zone{0, 400}, fast, false},
	} {
		if apart, none := c.z.apart(Defaults()); apart != c.apart || none != c.none {
			t.Errorf("%v: %s, %v", c.z, apart, none)
		}
	}
}

// TestRates has rules that give up none, or that cannot be kept to.
func TestRates(t *testing.T) {
	r := Defaults()
	r.Rate, r.SlowRate = 0, 0
	for _, z := range []zone{{9, 1}, {20, 40}, {0, 3}} {
		if apart, none := z.apart(r); !none || apart != askAgain {
			t.Errorf("%v: %s, %v", z, apart, none)
		}
	}
	if err := r.Check(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Rules){
		"no patience":       func(r *Rules) { r.Grace = 0 },
		"none at the start": func(r *Rules) { r.StartGrace = -1 },
		"a negative rate":   func(r *Rules) { r.Rate = -1 },
		"no number":         func(r *Rules) { r.SlowRate = math.NaN() },
		"at once":           func(r *Rules) { r.Rate = math.Inf(1) },
		"longer than time":  func(r *Rules) { r.Rate = 1e-300 },
		"a part of nothing": func(r *Rules) { r.Disrupted = 0 },
		"more than all":     func(r *Rules) { r.Disrupted = 1.1 },
		"no part":           func(r *Rules) { r.Disrupted = math.NaN() },
		"a negative number": func(r *Rules) { r.LargeZone = -1 },
	} {
		r := Defaults()
		if change(&r); r.Check() == nil {
			t.Errorf("%s: taken", name)
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
	c.keeper = &keeper{
		nodes: corelisters.NewNodeLister(store), rules: Defaults(), now: func() time.Time { return c.at },
		seen: map[string]seen{}, evicted: map[string]time.Time{}, cut: map[string]bool{}, healed: map[string]time.Time{},
	}
	return c
}

func (c *cluster) put(zone string, i int, is corev1.ConditionStatus) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(zone, i), Labels: map[string]string{corev1.LabelTopologyZone: zone}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: is}}},
	}
	_ = c.store.Add(n)
	c.seen[n.Name] = seen{at: c.at, ready: is == corev1.ConditionTrue}
	return n
}

// fill is n nodes of a zone that are well.
func (c *cluster) fill(zone string, n int) []*corev1.Node {
	var all []*corev1.Node
	for i := range n {
		all = append(all, c.put(zone, i, corev1.ConditionTrue))
	}
	return all
}

// asked asks for a node by what taint its pods go, or when to ask again.
func (c *cluster) asked(t *testing.T, n *corev1.Node, want string, again time.Duration) {
	t.Helper()
	if got, left, err := c.evict(n, c.at); err != nil || got != want || left != again {
		t.Errorf("node %s: %q, again in %s: %v; want %q, %s", n.Name, got, left, err, want, again)
	}
}

// hear has those nodes that are well be heard of, some time later.
func (c *cluster) hear(later time.Duration) {
	c.at = c.at.Add(later)
	for name, s := range c.seen {
		if s.ready {
			c.seen[name] = seen{at: c.at, ready: true}
		}
	}
}

// TestEvict gives up nodes of two zones apart, keeps those of a zone most of which is not heard of, and all when none
// is.
func TestEvict(t *testing.T) {
	c := newCluster()
	a, b := c.fill("a", 10), c.fill("b", 10)
	for i := range 2 {
		a[i], b[i] = c.put("a", i, corev1.ConditionUnknown), c.put("b", i, corev1.ConditionFalse)
	}
	c.asked(t, a[0], corev1.TaintNodeUnreachable, 0)
	c.asked(t, b[0], corev1.TaintNodeNotReady, 0) // of another zone
	c.asked(t, a[1], "", fast)
	c.hear(fast)
	c.asked(t, a[1], corev1.TaintNodeUnreachable, 0)
	for i := range 6 {
		b[i] = c.put("b", i, corev1.ConditionUnknown)
	}
	c.hear(time.Hour)
	c.asked(t, b[5], "", askAgain)
	b[5].Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute}}
	c.asked(t, b[5], corev1.TaintNodeUnreachable, 0) // given up before
	for i := range 10 {
		a[i], b[i] = c.put("a", i, corev1.ConditionUnknown), c.put("b", i, corev1.ConditionUnknown)
	}
	c.asked(t, a[3], "", 0)
	b[5].Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute}}
	c.asked(t, b[5], "", 0) // it is taken back
	a[9] = c.put("a", 9, corev1.ConditionTrue)
	c.asked(t, b[1], "", c.rules.Grace) // it may be heard of, too
	c.hear(c.rules.Grace)
	c.asked(t, b[1], corev1.TaintNodeUnreachable, 0) // a zone of which nothing is left, while another one is there
	c.asked(t, b[2], "", fast)
	c.asked(t, a[1], "", askAgain)
}

// TestHealed gives up none of a zone that was cut off until its nodes have had the time to be heard of again.
func TestHealed(t *testing.T) {
	c := newCluster()
	a := c.fill("a", 10)
	for i := range 6 {
		a[i] = c.put("a", i, corev1.ConditionUnknown)
	}
	c.asked(t, a[0], "", askAgain)
	c.hear(time.Hour)
	for i := range 2 {
		a[i] = c.put("a", i, corev1.ConditionTrue)
	}
	c.asked(t, a[5], "", c.rules.Grace)
	c.hear(c.rules.Grace - time.Second)
	c.asked(t, a[4], "", time.Second)
	c.hear(time.Second)
	c.asked(t, a[5], corev1.TaintNodeUnreachable, 0)
	c.asked(t, a[4], "", fast)
}

// TestDoubt has nodes be cut off that have renewed their leases at different times: the first that is lost is not given
// up, as those that are still taken for well have been silent for longer than nodes that are.
func TestDoubt(t *testing.T) {
	for name, z := range map[string]struct {
		lost, well int // beside the first one that is lost
		other      int // well, of another zone
		doubt      bool
	}{
		"one of three":      {0, 2, 0, false},
		"two of three":      {1, 1, 0, false},
		"all":               {2, 0, 0, true},
		"the only one":      {0, 0, 0, false}, // no node is ready, which is known already
		"half of ten":       {4, 5, 0, false},
		"most of ten":       {5, 4, 0, true},
		"a zone of several": {9, 0, 3, false}, // as a zone of which nothing is left, it is given up
		"most of 60":        {39, 20, 0, false},
	} {
		c := newCluster()
		c.fill("b", z.other)
		all := c.fill("a", 1+z.lost+z.well)
		c.at = c.at.Add(c.rules.Grace - 10*time.Second)
		for i := range z.lost {
			c.seen[all[1+i].Name] = seen{at: c.at.Add(-c.rules.Grace + time.Duration(11+i%9)*time.Second), ready: true}
		}
		for i := range z.well {
			c.seen[all[1+z.lost+i].Name] = seen{at: c.at.Add(-9 * time.Second), ready: true}
		}
		for i := range z.other {
			c.seen[fmt.Sprint("b", i)] = seen{at: c.at, ready: true}
		}
		first := c.put("a", 0, corev1.ConditionUnknown)
		key, again, err := c.evict(first, c.at)
		switch {
		case err != nil:
			t.Fatal(err)
		case name == "the only one":
			if key != "" {
				t.Errorf("%s: %q", name, key)
			}
		case z.doubt && (key != "" || again != 11*time.Second):
			t.Errorf("%s: %q, again in %s; want in 11s", name, key, again)
		case !z.doubt && key != corev1.TaintNodeUnreachable:
			t.Errorf("%s: %q, again in %s", name, key, again)
		}
	}
}
