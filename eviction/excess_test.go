package eviction

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/eviction/limit"
	"github.com/berth-node/berth/eviction/signal"
)

// told are limits that tell what a test wants told.
type told chan limit.Look

func (c told) Over() <-chan limit.Look { return c }

// over is a pod above its limit, as of now.
func over(name string) limit.Excess {
	return limit.Excess{
		UID: having(corev1.ResourceEphemeralStorage, name, 0, 0).UID, Namespace: "default", Name: name, Signal: signal.EmptyDirLimit,
		Of: `emptyDir "v"`, Used: 30, Limit: 10, Message: "Usage is too much. ", Time: time.Now(),
	}
}

// saidOf is said of what happens to several at the same time, in any order.
func saidOf(t *testing.T, w *world, want ...string) {
	t.Helper()
	got := strings.Split(w.story(), "\n")
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("what happened:\n%s\nwant:\n%s", w.story(), strings.Join(want, "\n"))
	}
}

// TestExcess: pods that are above their limits go, whatever the node has left and whoever else goes, and each once.
// What was counted before a pod has ended is nothing to go by when it is here again.
func TestExcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(having(corev1.ResourceEphemeralStorage, "a", 30, 0), having(corev1.ResourceEphemeralStorage, "b", 30, 0), memory("bomb", 990, 0))
		limits := make(told)
		c := Config{Policy: policy(hard(mem, 50, 0)), Limits: limits}
		live(t, w, c, func(m *Manager) {
			stale := []limit.Excess{over("a"), over("b")}
			limits <- limit.Look{Began: time.Now(), Over: stale}
			time.Sleep(1500 * time.Millisecond)
			limits <- limit.Look{Began: time.Now(), Over: stale} // who counted before a has ended
			time.Sleep(2 * time.Second)
			limits <- limit.Look{Began: time.Now(), Over: stale}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			saidOf(t, w, "0s KubeletHasInsufficientMemory", "0s evict bomb with 0 for memory.available", "0s bomb has ended",
				"0s evict a with 1 for emptydirfs.limit", "0s evict b with 1 for emptydirfs.limit", "1s a has ended", "1s b has ended")
			all := slices.DeleteFunc(w.decisions(), func(d Decision) bool { return d.Signal != signal.EmptyDirLimit })
			if len(all) != 2 {
				t.Fatalf("%+v", all)
			}
			slices.SortFunc(all, func(a, b Decision) int { return cmp.Compare(a.Pod.Name, b.Pod.Name) })
			if d := all[0]; d.Pod.String() != "default/a" || d.Message != "Usage is too much. " || d.Available != -20 || d.Capacity != 10 ||
				d.GraceSeconds != 1 || d.Reason != `emptyDir "v" is above its limit` || d.Result.Error != "" {
				t.Errorf("%+v", d)
			}
			if w.evicted(signal.EmptyDirLimit) != 2 || len(m.tried.given) > 1 {
				t.Errorf("counted %d, remembered %v", w.evicted(signal.EmptyDirLimit), m.tried.given)
			}
			w.set(func() { w.told, w.pods[0].killed, w.pods[0].Ending = nil, false, false })
			limits <- limit.Look{Began: time.Now(), Over: []limit.Excess{over("a")}} // it is here anew, and again above
			time.Sleep(2 * time.Second)
			limits <- limit.Look{Began: time.Now()}
			synctest.Wait()
			if len(m.excesses.ended)+len(m.excesses.over) > 0 {
				t.Errorf("pods that are gone are remembered: %+v", m.excesses)
			}
			if n := len(w.told); n != 2 {
				t.Errorf("%q", w.told)
			}
		})
	})
}

// TestExcessThatStays: one that cannot be ended is tried again by and by, and does not keep the others.
func TestExcessThatStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stays := having(corev1.ResourceEphemeralStorage, "a", 30, 0)
		stays.stays = true
		w := newWorld(stays, having(corev1.ResourceEphemeralStorage, "b", 30, 0))
		limits := make(told)
		live(t, w, Config{Limits: limits}, func(m *Manager) {
			limits <- limit.Look{Began: time.Now(), Over: []limit.Excess{over("a"), over("b")}}
			time.Sleep(25 * time.Second)
			synctest.Wait()
			saidOf(t, w, "0s evict a with 1 for emptydirfs.limit", "0s evict b with 1 for emptydirfs.limit", "1s b has ended",
				"21.1s evict a with 1 for emptydirfs.limit")
			limits <- limit.Look{Began: time.Now()}
			synctest.Wait()
		})
	})
}

// TestExcessOnFullDisk: one that is above its limit has no more time when the node is short of disk, nobody else goes
// beside it, and it takes along what it has.
func TestExcessOnFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := having(corev1.ResourceEphemeralStorage, "a", 100, 0)
		a.dies = 50 * time.Millisecond
		w := newWorld(a, having(corev1.ResourceEphemeralStorage, "b", 200, 0))
		limits := make(told)
		live(t, w, Config{Policy: policy(hard(signal.NodeFsAvailable, 100, 0)), Limits: limits}, func(m *Manager) {
			limits <- limit.Look{Began: time.Now(), Over: []limit.Excess{over("a")}}
			time.Sleep(100 * time.Millisecond)
			w.set(func() { w.others[signal.NodeFsAvailable] = 650 })
			time.Sleep(10 * time.Second)
			synctest.Wait()
			said(t, w, "0s evict a with 1 for emptydirfs.limit", "100ms KubeletHasDiskPressure",
				"200ms evict a with 0 for nodefs.available", "250ms a has ended")
			all := w.decisions()
			if len(all) != 1 || all[0].Message != "Usage is too much. " || all[0].Hardened.IsZero() || all[0].Signal != signal.EmptyDirLimit {
				t.Errorf("%+v", all)
			}
		})
	})
}

// TestExcessBesideNode: one that is above its limit does not wait until what nobody needs is removed. It waits for a
// pod that goes for the sake of the node, and does not go again if it was that one.
func TestExcessBesideNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := having(corev1.ResourceEphemeralStorage, "a", 500, 0)
		a.dies = 2 * time.Second
		w := newWorld(a, having(corev1.ResourceEphemeralStorage, "b", 30, 0))
		w.garbage, w.slow = 100, time.Minute
		w.others[signal.NodeFsAvailable] = 250
		limits := make(told)
		live(t, w, Config{Policy: policy(hard(signal.NodeFsAvailable, 200, 150)), Limits: limits}, func(m *Manager) {
			limits <- limit.Look{Began: time.Now(), Over: []limit.Excess{over("b")}}
			time.Sleep(61 * time.Second)
			limits <- limit.Look{Began: time.Now(), Over: []limit.Excess{over("a")}}
			time.Sleep(20 * time.Second)
			synctest.Wait()
			story := w.story()
			for _, want := range []string{"0s b has ended", "1m0s evict a with 0 for nodefs.available", "1m2s a has ended"} {
				if !strings.Contains(story, want) || strings.Count(story, "evict a") != 1 {
					t.Errorf("want %q once in\n%s", want, story)
				}
			}
			limits <- limit.Look{Began: time.Now()}
			synctest.Wait()
		})
	})
}

// TestExcessesOnFullDisk: of all that are above their limits none has time any more when the node is short of disk.
func TestExcessesOnFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(having(corev1.ResourceEphemeralStorage, "a", 100, 0), having(corev1.ResourceEphemeralStorage, "b", 100, 0))
		limits := make(told)
		live(t, w, Config{Policy: policy(hard(signal.NodeFsAvailable, 100, 0)), Limits: limits}, func(m *Manager) {
			limits <- limit.Look{Began: time.Now(), Over: []limit.Excess{over("a"), over("b")}}
			time.Sleep(100 * time.Millisecond)
			w.set(func() { w.others[signal.NodeFsAvailable] = 750 })
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if all := w.decisions(); len(all) != 2 || all[0].Hardened.IsZero() || all[1].Hardened.IsZero() {
				t.Errorf("%+v", all)
			}
			limits <- limit.Look{Began: time.Now()}
			synctest.Wait()
		})
	})
}
