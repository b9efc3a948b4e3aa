package eviction

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/eviction/rank"
	"github.com/berth-node/berth/eviction/signal"
)

const mem = signal.MemoryAvailable

// TestHard: a pod that takes more and more goes, at once, and nobody else; what is told of it has the figures.
func TestHard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bomb, quiet, guaranteed := memory("bomb", 0, 0), memory("quiet", 100, 50), memory("guaranteed", 300, 300)
		bomb.grows, bomb.dies = 1000, 100*time.Millisecond
		bomb.Containers = []rank.Container{{Name: "c", Usage: 550, Request: 0}, {Name: "d", Usage: 5, Request: 10}}
		w := newWorld(bomb, quiet, guaranteed)
		var began []signal.Signal
		var told []Decision
		c := Config{
			Policy: policy(hard(mem, 50, 0)), Began: func(of signal.Signal) { began = append(began, of) },
			Decided: func(d Decision) { told = append(told, d) },
		}
		live(t, w, c, func(m *Manager) {
			time.Sleep(5 * time.Second)
			synctest.Wait()
			said(t, w, "560ms KubeletHasInsufficientMemory", "560ms evict bomb with 0 for memory.available", "660ms bomb has ended")
			all := w.decisions()
			if len(all) != 1 || len(told) != 1 || len(began) != 1 || w.evicted(mem) != 1 {
				t.Fatalf("%d decisions, told %d, began %v, counted %d", len(all), len(told), began, w.evicted(mem))
			}
			d := all[0]
			if d.Pod.String() != "default/bomb" || d.Threshold != "memory.available<50" || d.Available != 40 || d.Limit != 50 ||
				d.Returned.Sub(d.Ordered) != 100*time.Millisecond || d.Ordered.Sub(d.Crossed) != 0 || d.Result.Freed != 560 ||
				len(d.Ranked) != 3 || d.Ranked[0].Pod.Name != "bomb" || d.Reason != "hard threshold" || d.Finished {
				t.Errorf("%+v", d)
			}
			const message = "The node was low on resource: memory. Threshold quantity: 50, available: 40. " +
				"Container c was using 550, request is 0, has larger consumption of memory. "
			if d.Message != message {
				t.Errorf("%q", d.Message)
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if got := w.armed[mem]; !slices.Equal(got, []int64{50}) {
				t.Errorf("armed %v", got)
			}
		})
	})
}

func TestOrderOfAnEviction(t *testing.T) {
	d := due{watched: &watched{Threshold: hard(mem, 100<<20, 0)}, reading: signal.Reading{Available: 52 << 20}}
	p := rank.Pod{Name: "p", Known: true, PodLevel: true, Usage: 3 << 30, Request: 1 << 30, Containers: []rank.Container{
		{Name: "a", Usage: 2 << 30, Request: 512 << 20}, {Name: "b", Usage: 1 << 30},
	}}
	o := d.order(&p, 7)
	const message = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 52Mi. " +
		"Pod p was using 3Gi, request is 1Gi, has larger consumption of memory. " +
		"Container a was using 2Gi, request is 512Mi, has larger consumption of memory. " +
		"Container b was using 1Gi, request is 0, has larger consumption of memory. "
	if o.Message != message || o.GraceSeconds != 7 || o.Resource != corev1.ResourceMemory || o.Signal != mem {
		t.Errorf("%+v", o)
	}
	if a := o.Annotations; a["offending_containers"] != "a,b" || a["offending_containers_usage"] != "2Gi,1Gi" ||
		a["starved_resource"] != "memory" || a["offending_pod"] != "p" || a["offending_pod_usage"] != "3Gi" {
		t.Errorf("%v", a)
	}
	d.watched.Signal = signal.PIDAvailable
	if o := d.order(&p, 0); o.Message != "The node was low on resource: pids. Threshold quantity: 104857600, available: 54525952. " {
		t.Errorf("%q", o.Message)
	}
}

// TestSoft: a soft threshold waits for its grace period, and the pod has the shorter of two times to end.
func TestSoft(t *testing.T) {
	for name, tt := range map[string]struct {
		grace int64
		want  []string
	}{
		"its own":    {5, []string{"0s KubeletHasInsufficientMemory", "30s evict a with 5 for memory.available", "35s a has ended"}},
		"the node's": {60, []string{"0s KubeletHasInsufficientMemory", "30s evict a with 20 for memory.available", "50s a has ended"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := memory("a", 900, 0)
				a.Grace = tt.grace
				w := newWorld(a)
				w.quiet = true // the time comes without anybody's waking
				live(t, w, Config{Policy: policy(soft(mem, 200, 30*time.Second))}, func(m *Manager) {
					time.Sleep(59 * time.Second)
					synctest.Wait()
					said(t, w, tt.want...)
					if d := w.decisions(); len(d) != 1 || d[0].Reason != "soft threshold, met for 30s" || d[0].GraceSeconds != min(tt.grace, 20) {
						t.Errorf("%+v", d)
					}
				})
			})
		})
	}
}

// TestSoftEases: a grace period starts anew when the threshold was not met in between.
func TestSoftEases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(memory("a", 900, 0))
		live(t, w, Config{Policy: policy(soft(mem, 200, 30*time.Second))}, func(*Manager) {
			for range 5 {
				time.Sleep(29 * time.Second)
				w.set(func() { w.pods[0].Usage = 100 })
				w.set(func() { w.pods[0].Usage = 900 })
			}
			said(t, w, "0s KubeletHasInsufficientMemory")
		})
	})
}

// pace is the exhaustion by the last two readings.
func pace(h []signal.Reading, limit int64) (time.Duration, bool) {
	if len(h) < 2 {
		return 0, false
	}
	a, b := h[len(h)-2], h[len(h)-1]
	lost, took := a.Available-b.Available, b.Time.Sub(a.Time)
	if lost <= 0 {
		return 0, false
	}
	return took * time.Duration(b.Available-limit) / time.Duration(lost), true
}

// TestSoftHurries: of a leak the soft threshold acts before the hard one would, though its grace period is not over; a
// leak that is slow enough has its time.
func TestSoftHurries(t *testing.T) {
	for name, tt := range map[string]struct {
		leaks int64 // a second
		want  []string
	}{
		"fast": {50, []string{"10.02s KubeletHasInsufficientMemory", "10.06s evict leak with 5 for memory.available", "15.06s leak has ended"}},
		"slow": {10, []string{"50.1s KubeletHasInsufficientMemory", "1m0.1s evict leak with 5 for memory.available", "1m5.1s leak has ended"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				leak := memory("leak", 0, 0)
				leak.grows, leak.Grace = tt.leaks, 5
				w := newWorld(leak)
				live(t, w, Config{Policy: policy(hard(mem, 100, 0), soft(mem, 500, 10*time.Second)), Exhaustion: pace}, func(m *Manager) {
					time.Sleep(70 * time.Second)
					synctest.Wait()
					said(t, w, tt.want...)
					if d := w.decisions(); len(d) != 1 || strings.Contains(d[0].Reason, "exhausted in") != (name == "fast") {
						t.Errorf("%+v", d)
					}
				})
			})
		})
	}
}

// TestSoftHurriesByTheSlope: by the readings' slope a leak is known too, whose pod is told to end with time to spare.
func TestSoftHurriesByTheSlope(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leak, quiet := memory("leak", 0, 0), memory("quiet", 100, 0)
		leak.grows, leak.Grace = 20, 5
		w := newWorld(leak, quiet)
		live(t, w, Config{Policy: policy(hard(mem, 100, 0), soft(mem, 500, time.Minute)), Exhaustion: signal.Exhaustion}, func(m *Manager) {
			time.Sleep(time.Minute)
			synctest.Wait()
			d := w.decisions()
			if len(d) != 1 || d[0].Pod.Name != "leak" || !strings.Contains(d[0].Reason, "exhausted in") || !d[0].Hardened.IsZero() {
				t.Errorf("%+v\n%s", d, w.story())
			}
		})
	})
}

// TestSoftHardens: a pod that has time to end has none when the hard threshold is met, and nobody goes beside it.
func TestSoftHardens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := memory("a", 700, 0), memory("b", 150, 0)
		w := newWorld(a, b)
		live(t, w, Config{Policy: policy(hard(mem, 50, 0), soft(mem, 200, time.Second))}, func(m *Manager) {
			time.Sleep(3 * time.Second)
			w.set(func() { b.Usage = 290 })
			time.Sleep(time.Minute)
			said(t, w, "0s KubeletHasInsufficientMemory", "1s evict a with 20 for memory.available",
				"3.1s evict a with 0 for memory.available", "3.1s a has ended")
			if d := w.decisions(); len(d) != 1 || d[0].Hardened.IsZero() || d[0].GraceSeconds != 0 || !strings.Contains(d[0].Message, "Threshold quantity: 50, available: 10. ") {
				t.Errorf("%+v", d)
			}
		})
	})
}

func TestMinReclaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(memory("a", 300, 0), memory("b", 200, 0), memory("c", 100, 0), memory("d", 390, 0))
		w.pods[3].Priority = 1
		w.pods[3].Request = 1000
		live(t, w, Config{Policy: policy(hard(mem, 100, 400))}, func(*Manager) {
			time.Sleep(time.Second)
			said(t, w, "0s KubeletHasInsufficientMemory", "0s evict a with 0 for memory.available", "0s a has ended",
				"0s evict b with 0 for memory.available", "0s b has ended")
			w.set(func() { w.others[mem] = 390 }) // less than is to be freed, not less than the threshold
			time.Sleep(time.Second)
			if got := w.story(); strings.Contains(got, "evict c") {
				t.Errorf("%s", got)
			}
		})
	})
}

// TestReclaim: before a pod goes for a disk, what nobody needs goes, once for each pod.
func TestReclaim(t *testing.T) {
	of := signal.NodeFsAvailable
	for name, tt := range map[string]struct {
		garbage int64
		want    []string
	}{
		"is enough":     {150, []string{"0s KubeletHasDiskPressure", "0s reclaim for nodefs.available"}},
		"is not enough": {10, []string{"0s KubeletHasDiskPressure", "0s reclaim for nodefs.available", "1s evict a with 0 for nodefs.available", "1s a has ended"}},
		"is enough, but not for long": {150, []string{
			"0s KubeletHasDiskPressure", "0s reclaim for nodefs.available", "1.5s reclaim for nodefs.available",
		}},
		"not enough twice": {-300, []string{
			"0s KubeletHasDiskPressure", "0s reclaim for nodefs.available", "1s evict a with 0 for nodefs.available", "1s a has ended",
			"1s reclaim for nodefs.available", "2s evict b with 0 for nodefs.available", "2s b has ended",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(having(corev1.ResourceEphemeralStorage, "a", 300, 0), having(corev1.ResourceEphemeralStorage, "b", 200, 0), memory("innocent", 500, 0))
				if name == "is enough, but not for long" {
					w.later = 30 // somebody writes as much again
				}
				w.garbage, w.slow, w.others[of] = max(tt.garbage, 0), time.Second, 450-max(tt.garbage, 0)-min(tt.garbage, 0)
				live(t, w, Config{Policy: policy(hard(of, 100, 0))}, func(m *Manager) {
					time.Sleep(30 * time.Second)
					synctest.Wait()
					said(t, w, tt.want...)
					if d := w.decisions(); name == "is enough" && (len(d) != 1 || d[0].Reclaimed != 50 || d[0].Result.Available != 100) {
						t.Errorf("%+v", d)
					}
				})
			})
		})
	}
}

// TestSettling: what was deleted may be free a moment later only; nobody goes for that, but not for ever.
func TestSettling(t *testing.T) {
	of := signal.NodeFsAvailable
	for name, tt := range map[string]struct {
		lasts time.Duration
		want  []string
	}{
		"free soon":  {2 * time.Second, nil},
		"free never": {time.Hour, []string{"5s evict b with 0 for imagefs.available", "5s b has ended"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := having(corev1.ResourceEphemeralStorage, "a", 600, 0), having(corev1.ResourceEphemeralStorage, "b", 350, 0)
				a.lasts = tt.lasts
				w := newWorld(a, b)
				w.quiet = true
				live(t, w, Config{Policy: policy(hard(of, 100, 0), hard(signal.ImageFsAvailable, 120, 0))}, func(m *Manager) {
					time.Sleep(10 * time.Second)
					synctest.Wait()
					got := slices.DeleteFunc(strings.Split(w.story(), "\n"), func(line string) bool { return strings.Contains(line, " reclaim for ") })
					want := append([]string{"0s KubeletHasDiskPressure", "0s evict a with 0 for imagefs.available", "0s a has ended"}, tt.want...)
					if !slices.Equal(got, want) {
						t.Errorf("%q, want %q", got, want)
					}
					if d := w.decisions(); len(tt.want) == 0 && (len(d) != 1 || d[0].Result.Freed != 600) {
						t.Errorf("%+v", d)
					}
				})
			})
		})
	}
}

// TestHanging: a node that does not come back at all is left to itself.
func TestHanging(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := memory("a", 600, 0), memory("b", 350, 300)
		a.stays, a.hangs = true, true
		w := newWorld(a, b)
		live(t, w, Config{Policy: policy(hard(mem, 100, 0))}, func(*Manager) {
			time.Sleep(20 * time.Second)
			said(t, w, "0s KubeletHasInsufficientMemory", "0s evict a with 0 for memory.available", "15s evict b with 0 for memory.available", "15s b has ended")
		})
		time.Sleep(2 * time.Hour) // it comes back some day
	})
}

// TestMemoryDoesNotWait: while a disk is seen to, memory is seen to too.
func TestMemoryDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(memory("a", 100, 0))
		w.garbage, w.slow = 950, time.Minute
		live(t, w, Config{Policy: policy(hard(mem, 100, 0), hard(signal.ImageFsAvailable, 100, 0))}, func(*Manager) {
			time.Sleep(time.Second)
			w.set(func() { w.pods[0].Usage = 950 })
			time.Sleep(2 * time.Minute)
			said(t, w, "0s KubeletHasDiskPressure", "0s reclaim for imagefs.available", "1s KubeletHasInsufficientMemory", "1s KubeletHasDiskPressure",
				"1s evict a with 0 for memory.available", "1s a has ended", "1m1s KubeletHasDiskPressure")
		})
	})
}

// TestMemoryComesFirst: when all is short, memory is before disks, as by kubelet, and a hard threshold before a soft
// one.
func TestMemoryComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(memory("a", 950, 0), having(signal.ResourcePIDs, "b", 990, 0))
		w.pods[0].dies = time.Second
		live(t, w, Config{Policy: policy(hard(signal.PIDAvailable, 100, 0), hard(mem, 100, 0))}, func(*Manager) {
			time.Sleep(10 * time.Second)
			said(t, w, "0s KubeletHasInsufficientMemory", "0s KubeletHasInsufficientPID", "0s evict a with 0 for memory.available", "1s a has ended",
				"1s evict b with 0 for pid.available", "1s b has ended")
		})
	})
}

// TestFlapping: pressure that comes and goes leaves the condition as it is, until it has been away for long enough.
func TestFlapping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(memory("a", 900, 0))
		w.quiet = true
		w.pods[0].Protected = true
		live(t, w, Config{Policy: policy(hard(mem, 200, 0))}, func(*Manager) {
			for range 20 {
				time.Sleep(50 * time.Second)
				w.set(func() { w.pods[0].Usage = 100 })
				time.Sleep(5 * time.Second)
				w.set(func() { w.pods[0].Usage = 900 })
			}
			w.set(func() { w.pods[0].Usage = 100 })
			eased := time.Now()
			if len(w.changes()) != 2 {
				t.Fatalf("conditions have changed %d times: %v", len(w.changes()), w.changes())
			}
			time.Sleep(time.Minute - time.Millisecond)
			synctest.Wait()
			if len(w.changes()) != 2 {
				t.Errorf("before the transition period is over: %v", w.changes())
			}
			time.Sleep(2 * time.Millisecond)
			synctest.Wait()
			all := w.changes()
			last := all[len(all)-1]
			if len(all) != 3 || last[0].Status || last[0].Reason != "KubeletHasSufficientMemory" || last[0].Since.Sub(eased) != time.Minute {
				t.Errorf("after it: %v", w.changes())
			}
			said(t, w, "0s KubeletHasInsufficientMemory")
		})
	})
}

// TestStubborn: a pod that cannot be ended is passed over, and tried again later, more and more rarely.
func TestStubborn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(memory("stubborn", 500, 0), memory("a", 250, 0), memory("b", 200, 0))
		w.pods[0].stays = true
		live(t, w, Config{Policy: policy(hard(mem, 400, 0))}, func(m *Manager) {
			time.Sleep(12 * time.Second)
			said(t, w, "0s KubeletHasInsufficientMemory", "0s evict stubborn with 0 for memory.available", "10.1s evict a with 0 for memory.available",
				"10.1s a has ended", "10.1s evict b with 0 for memory.available", "10.1s b has ended")
			d := w.decisions()
			if len(d) != 3 || !d[0].Result.Told || d[1].Result.Error != "" || d[1].Result.Told {
				t.Errorf("%+v", d)
			}
			w.set(func() { w.others[mem] = 400 })
			before := w.story()
			time.Sleep(3 * time.Minute)
			if tried := strings.Count(strings.TrimPrefix(w.story(), before), "evict stubborn"); tried < 2 || tried > 5 {
				t.Errorf("tried %d times in three minutes:\n%s", tried, w.story())
			}
		})
	})
}

// TestEnding: a pod that was told to end before, by an agent that is no more, say, is ended first, and nobody beside
// it.
func TestEnding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := memory("a", 600, 0), memory("b", 350, 300)
		b.Ending, b.dies = true, 2*time.Second
		w := newWorld(a, b)
		live(t, w, Config{Policy: policy(hard(mem, 100, 0))}, func(m *Manager) {
			time.Sleep(10 * time.Second)
			said(t, w, "0s KubeletHasInsufficientMemory", "0s evict b with 0 for memory.available", "2s b has ended")
			if d := w.decisions(); len(d) != 1 || !d[0].Finished {
				t.Errorf("%+v", d)
			}
		})
	})
}

// TestGiven: a pod that has ended is not ended twice, though it is told of still, and does not keep the next one; when
// it has come back, it is one like others.
func TestGiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := memory("a", 600, 0), memory("b", 350, 300)
		a.lags = true
		w := newWorld(a, b)
		live(t, w, Config{Policy: policy(hard(mem, 100, 600))}, func(*Manager) {
			time.Sleep(10 * time.Second)
			said(t, w, "0s KubeletHasInsufficientMemory", "0s evict a with 0 for memory.available", "0s a has ended",
				"0s evict b with 0 for memory.available", "0s b has ended")
			w.set(func() { a.Ending, a.killed = false, false })
			w.set(func() { w.others[mem] = 350 })
			time.Sleep(time.Second)
			if got := w.story(); strings.Count(got, "evict a") != 2 || strings.Count(got, "evict b") != 1 {
				t.Errorf("%s", got)
			}
			w.set(func() { a.Ending, a.killed, a.stays = false, false, true })
			time.Sleep(time.Minute)
			if got := w.story(); strings.Count(got, "evict a") < 4 {
				t.Errorf("that it had ended is no reason to let it be, when it has come back and does not:\n%s", got)
			}
		})
	})
}

// TestEased: when there is enough again nothing is left of what was tried before. Whoever can go then goes at once,
// though nobody could for long, and what nobody needs goes before any pod.
func TestEased(t *testing.T) {
	t.Run("nobody could go", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			kept, goes := memory("kept", 950, 0), memory("goes", 0, 0)
			kept.Protected = true
			w := newWorld(kept, goes)
			live(t, w, Config{Policy: policy(hard(mem, 100, 0))}, func(*Manager) {
				time.Sleep(5 * time.Minute)
				w.set(func() { kept.Usage = 0 })
				time.Sleep(20 * time.Millisecond)
				w.set(func() { goes.Usage = 950 })
				time.Sleep(20 * time.Millisecond)
				if got := w.story(); !strings.Contains(got, "evict goes with 0") {
					t.Errorf("%s", got)
				}
			})
		})
	})
	t.Run("reclaimed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			const of = signal.NodeFsAvailable
			w := newWorld(having(of.Resource(), "a", 500, 0))
			w.garbage = 450
			live(t, w, Config{Policy: policy(hard(of, 100, 0))}, func(*Manager) {
				time.Sleep(time.Second)
				w.set(func() { w.garbage = 450 })
				time.Sleep(time.Second)
				if got := w.story(); strings.Contains(got, "evict") || strings.Count(got, "reclaim") != 2 {
					t.Errorf("%s", got)
				}
			})
		})
	})
}

// TestEasedMeanwhile: who had the most ends by himself, or by the kernel, while it is asked who has what: nobody goes
// in his place, and nothing was decided.
func TestEasedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bomb, quiet := memory("bomb", 850, 0), memory("quiet", 100, 0)
		w := newWorld(bomb, quiet)
		w.asking = 200 * time.Millisecond
		live(t, w, Config{Policy: policy(hard(mem, 100, 0))}, func(m *Manager) {
			time.Sleep(100 * time.Millisecond)
			w.set(func() { bomb.killed = true })
			time.Sleep(10 * time.Second)
			if got := w.story(); strings.Contains(got, "evict") {
				t.Error(got)
			}
			if all := w.decisions(); len(all) > 0 || w.evicted(mem) != 0 {
				t.Errorf("decided %+v", all)
			}
			w.set(func() { quiet.Usage = 950 })
			time.Sleep(time.Second)
			said(t, w, "0s KubeletHasInsufficientMemory", "10.3s evict quiet with 0 for memory.available", "10.3s quiet has ended")
		})
	})
}

// TestLateMemory: what a pod had of memory comes back a moment after it, and nobody else goes for it.
func TestLateMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files, quiet := memory("files", 850, 0), memory("quiet", 100, 0)
		files.lasts = 300 * time.Millisecond
		w := newWorld(files, quiet)
		live(t, w, Config{Policy: policy(hard(mem, 100, 0))}, func(m *Manager) {
			time.Sleep(10 * time.Second)
			said(t, w, "0s KubeletHasInsufficientMemory", "0s evict files with 0 for memory.available", "0s files has ended")
			if all := w.decisions(); len(all) != 1 || all[0].Result.Freed != 850 {
				t.Errorf("decided %+v", all)
			}
		})
	})
}

// TestNobody: when no pod may go that has any of it, none goes, and it is asked more and more rarely.
func TestNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := memory("kept", 950, 0), memory("nothing", 0, 0)
		a.Protected = true
		w := newWorld(a, b)
		live(t, w, Config{Policy: policy(hard(mem, 100, 0))}, func(m *Manager) {
			time.Sleep(5 * time.Minute)
			said(t, w, "0s KubeletHasInsufficientMemory")
			d := w.decisions()
			someone := func(d Decision) bool { return d.Pod != (Name{}) }
			if len(d) == 0 || len(d) > 20 || slices.ContainsFunc(d, someone) || d[len(d)-1].Time.Sub(w.start) < time.Minute {
				t.Errorf("%+v", d)
			}
			w.set(func() { w.pods[1].Usage = 1 })
			time.Sleep(restMost)
			if got := w.story(); !strings.Contains(got, "evict nothing with 0") {
				t.Errorf("%s", got)
			}
		})
	})
}

// TestUnread: nothing is done about what is not known, and nothing is forgotten of it.
func TestUnread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(memory("a", 950, 0))
		w.unreadable[mem] = true
		live(t, w, Config{Policy: policy(soft(mem, 100, 10*time.Second))}, func(*Manager) {
			time.Sleep(time.Minute)
			said(t, w)
			w.set(func() { w.unreadable[mem] = false })
			time.Sleep(5 * time.Second)
			w.set(func() { w.unreadable[mem] = true })
			time.Sleep(20 * time.Second)
			said(t, w, "1m0s KubeletHasInsufficientMemory")
			w.set(func() { w.unreadable[mem] = false })
			time.Sleep(time.Second)
			said(t, w, "1m0s KubeletHasInsufficientMemory", "1m25s evict a with 20 for memory.available")
		})
	})
}

// TestStall: a node that stands still loses the pod with the worst claim of the lowest class, and another one only when
// it has stood still for as long again.
func TestStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, c := memory("a", 10, 0), memory("b", 500, 0), memory("c", 20, 0)
		a.QOS, b.QOS, c.QOS = corev1.PodQOSBestEffort, corev1.PodQOSBurstable, corev1.PodQOSBestEffort
		w := newWorld(a, b, c)
		full := 0.0
		var err error
		s := &Stall{Full: func() (float64, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return full, err
		}, Above: 40, For: 5 * time.Second}
		live(t, w, Config{Policy: policy(hard(mem, 100, 0)), Stall: s}, func(m *Manager) {
			time.Sleep(time.Minute)
			w.set(func() { full = 41 })
			time.Sleep(4 * time.Second)
			w.set(func() { full = 40 })
			w.set(func() { full = 50 })
			time.Sleep(4 * time.Second)
			w.set(func() { err = errors.New("no such file") })
			w.set(func() { err = nil })
			said(t, w)
			time.Sleep(14 * time.Second)
			said(t, w, "1m13s evict c with 0 for memory.available", "1m13s c has ended", "1m18s evict a with 0 for memory.available", "1m18s a has ended")
			if d := w.decisions(); len(d) != 2 || !strings.Contains(d[0].Message, "The node was low on resource: memory. The node stands still for want of memory: 50.0% of the last 10 s, for 5s. ") {
				t.Errorf("%+v", d)
			}
		})
	})
}

// TestEndOfRun: the manager ends at once, and the pod goes on ending without it.
func TestEndOfRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(memory("a", 950, 0))
		w.pods[0].dies = 8 * time.Second
		began := time.Now()
		live(t, w, Config{Policy: policy(hard(mem, 100, 0))}, func(m *Manager) { time.Sleep(time.Second) })
		// as long as the node takes to give it up
		if took := time.Since(began); took != time.Second+100*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		said(t, w, "0s KubeletHasInsufficientMemory", "0s evict a with 0 for memory.available")
	})
}

// TestSequences: of 1,000 random nodes those pods go that the order says, until there is enough, and no others.
func TestSequences(t *testing.T) {
	for seed := range uint64(1000) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 7))
			of := []signal.Signal{mem, signal.PIDAvailable, signal.AllocatableMemoryAvailable}[random.IntN(3)]
			w := newWorld()
			w.quiet = true // the end of one is what the next one waits for
			left := int64(1000)
			for i := range 1 + random.IntN(10) {
				p := having(of.Resource(), fmt.Sprint("p", i), int64(random.IntN(150)), 0)
				if of.Requestable() {
					p.Request = int64(random.IntN(3)) * 50
				}
				p.Priority, p.Protected, p.dies = int32(random.IntN(3)), random.IntN(5) == 0, time.Duration(random.IntN(500))*time.Millisecond
				p.lags = random.IntN(2) == 0
				p.UID = types.UID(p.Name)
				w.pods = append(w.pods, p)
				left -= p.Usage
			}
			at, more := int64(random.IntN(1000)), int64(random.IntN(3))*100
			wants := more
			if at+more >= 1000 { // all there is: such a reclaim counts as none
				wants = 0
			}
			var all []rank.Pod
			for _, p := range w.pods {
				all = append(all, p.Pod)
			}
			var want []string
			if left < at {
				for _, p := range rank.Order(all, of) {
					if left >= at+wants {
						break
					}
					if p.Usage > 0 {
						want = append(want, p.Name)
						left += p.Usage
					}
				}
			}
			live(t, w, Config{Policy: policy(hard(of, at, more))}, func(*Manager) { time.Sleep(time.Minute) })
			var got []string
			for line := range strings.Lines(w.story()) {
				if _, rest, ok := strings.Cut(line, " evict "); ok {
					name, _, _ := strings.Cut(rest, " ")
					got = append(got, name)
				}
			}
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d: %v went, want %v\n%s", seed, got, want, w.story())
			}
		})
	}
}
