package plugin_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/cluster"
	"github.com/berth-node/berth/control/scheduler/plugin/interpodaffinity"
	"github.com/berth-node/berth/control/scheduler/plugin/podtopologyspread"
)

// TestRemembered changes a cluster bit by bit. A plugin that has seen all of it says of nodes what one says that has
// not.
func TestRemembered(t *testing.T) {
	n, seed := histories(t)
	for i := range n / 10 {
		c := chance{rand.New(rand.NewPCG(seed, uint64(i)))}
		w := newWorld(nil, nil, nsOf(t, `{metadata: {name: one, labels: {team: one}}}`), nsOf(t, `{metadata: {name: two, labels: {team: two}}}`))
		cache := cluster.NewCache()
		w.snapshot = cluster.NewEmptySnapshot()
		plugins := map[string]factory{"affinity": interpodaffinity.New, "spread": podtopologyspread.New}
		old := map[string]fwk.Plugin{}
		for name, f := range plugins {
			old[name] = make1(t, f, nil, w)
		}
		at := map[types.UID]bool{}
		for step := range 40 {
			switch k := c.IntN(6); {
			case step < 4 || k == 0:
				cache.SetNode(c.node(c.IntN(6)))
			case k == 1:
				cache.DeleteNode(fmt.Sprintf("n%d", c.IntN(6)))
			case k == 2:
				for uid := range at {
					cache.DeletePod(uid)
					delete(at, uid)
					break
				}
			default:
				p := c.pod(fmt.Sprintf("p%d", c.IntN(12)), fmt.Sprintf("n%d", c.IntN(6)))
				cache.SetPod(p)
				at[p.UID] = true
			}
			cache.Update(w.snapshot)
			compare := func(when string) {
				for kind := range c.IntN(3) {
					pod := chance{rand.New(rand.NewPCG(seed, uint64(kind)))}.pod("new", "")
					anyway := pod.DeepCopy()
					for i := range anyway.Spec.TopologySpreadConstraints {
						anyway.Spec.TopologySpreadConstraints[i].WhenUnsatisfiable = corev1.ScheduleAnyway
					}
					for name, f := range plugins {
						got := show(verdicts(t, old[name], w, pod)) + show(scores(t, old[name], w, anyway))
						fresh := make1(t, f, nil, w)
						if want := show(verdicts(t, fresh, w, pod)) + show(scores(t, fresh, w, anyway)); got != want {
							t.Fatalf("history %d, step %d, %s, %s\ngot  %s\nwant %s", i, step, when, name, got, want)
						}
					}
				}
			}
			compare("as it is")
			if c.IntN(3) == 0 {
				suppose(t, c, w.snapshot, func() { compare("as it would be") })
				compare("as it is again")
			}
		}
	}
}

// suppose has a snapshot say what would be if some pods came and others went.
func suppose(t *testing.T, c chance, s *cluster.Snapshot, then func()) {
	t.Helper()
	if err := s.StartMutations(); err != nil {
		t.Fatal(err)
	}
	all, _ := s.NodeInfos().List()
	for i, n := range all {
		name := n.Node().Name
		pods := n.GetPods()
		switch c.IntN(3) {
		case 0:
			info, err := cluster.NewPodInfo(c.pod(fmt.Sprintf("supposed%d", i), name))
			if err == nil {
				err = s.AddPod(info, name)
			}
			if err != nil {
				t.Fatal(err)
			}
		case 1:
			if len(pods) > 0 {
				if err := s.RemovePod(klog.Logger{}, pods[0].GetPod(), name); err != nil {
					t.Fatal(err)
				}
			}
		}
		then()
	}
	if err := s.EndMutations(); err != nil {
		t.Fatal(err)
	}
}
