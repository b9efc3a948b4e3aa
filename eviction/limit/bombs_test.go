package limit

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestMeterBombs: however many pods have more files than can be counted, others are held to their limits as if there
// were none, and so is a bomb of which more than its limit could be counted.
func TestMeterBombs(t *testing.T) {
	var pods []*corev1.Pod
	bombs := map[types.UID]bool{}
	for i := range 20 {
		p := withVolume(fmt.Sprint("bomb", i))
		bombs[p.UID] = true
		pods = append(pods, p)
	}
	quick := withLimit("quick")
	start := func(n *node) { n.bombs = bombs }
	runOn(t, start, func(n *node) {
		n.write("v", 1)
		n.write("c", 1)
		time.Sleep(10 * time.Minute)
		n.counts(quick)
		for i := range int64(60) {
			n.write("c", 2+i)
			time.Sleep(time.Second)
		}
		if got := n.counts(quick); got < 5 {
			t.Errorf("counted %d times in a minute in which it has written", got)
		}
		for uid := range bombs {
			if n.counts(&corev1.Pod{ObjectMeta: named(string(uid))}) == 0 {
				t.Errorf("%s was never counted", uid)
			}
		}
		began := time.Now()
		n.write("c", 2<<20)
		n.events <- struct{}{}
		if l := n.next(); len(l.Over) != 1 || l.Over[0].UID != quick.UID || time.Since(began) > 2*time.Second {
			t.Errorf("after %v: %+v", time.Since(began), l)
		}
		n.write("v", 2<<20)
		for l := n.next(); len(l.Over) <= len(bombs); l = n.next() {
			if time.Since(began) > 30*time.Minute {
				t.Fatalf("%d of %d are over", len(l.Over), len(bombs)+1)
			}
		}
	}, append(pods, quick)...)
}
