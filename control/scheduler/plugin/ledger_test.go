package plugin_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/control/scheduler/cluster"
	"github.com/berth-node/berth/control/scheduler/plugin/interpodaffinity"
)

// TestScoresRemembered changes a cluster bit by bit. A plugin that has seen all of it scores as one that has not.
func TestScoresRemembered(t *testing.T) {
	n, seed := histories(t)
	for i := range n / 10 {
		c := chance{rand.New(rand.NewPCG(seed, uint64(i)))}
		w := newWorld(nil, nil, nsOf(t, `{metadata: {name: one, labels: {team: one}}}`), nsOf(t, `{metadata: {name: two, labels: {team: two}}}`))
		cache := cluster.NewCache()
		w.snapshot = cluster.NewEmptySnapshot()
		old := make1(t, interpodaffinity.New, nil, w)
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
			for kind := range c.IntN(3) {
				pod := chance{rand.New(rand.NewPCG(seed, uint64(kind)))}.pod("new", "")
				got, want := scores(t, old, w, pod), scores(t, make1(t, interpodaffinity.New, nil, w), w, pod)
				if show(got) != show(want) {
					t.Fatalf("history %d, step %d\ngot  %s\nwant %s", i, step, show(got), show(want))
				}
			}
		}
	}
}
