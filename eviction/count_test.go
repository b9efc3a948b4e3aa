package eviction

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/eviction/signal"
)

// TestTimeToCount: files are counted for as long as there is time, and that is less when a disk fills up fast.
func TestTimeToCount(t *testing.T) {
	for name, tt := range map[string]struct {
		grows       int64
		least, most time.Duration
	}{
		"calm":        {0, countPatience, countPatience},
		"fast":        {50, 7 * time.Second, 8 * time.Second},
		"at one blow": {5000, countLeast, countLeast},
		"over":        {-1, countLeast, countLeast},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bomb := having(corev1.ResourceEphemeralStorage, "bomb", 0, 0)
				switch {
				case tt.grows > 0:
					bomb.grows = tt.grows
				case tt.grows == 0:
					bomb.Usage = 600
				default:
					bomb.Usage = 1000
				}
				w := newWorld(bomb)
				c := Config{Policy: policy(hard(signal.NodeFsAvailable, 500, 0)), Exhaustion: signal.Exhaustion}
				live(t, w, c, func(*Manager) {
					time.Sleep(time.Minute)
					w.mu.Lock()
					defer w.mu.Unlock()
					if w.allowed < tt.least || w.allowed > tt.most {
						t.Errorf("%v to count, want %v to %v", w.allowed, tt.least, tt.most)
					}
				})
			})
		})
	}
}

// TestManyFilesAreWaitedFor: a pod that gives back what it had for a minute, as one with millions of files, is waited
// for, and nobody goes beside it; but not when nothing comes back any more, or others take it.
func TestManyFilesAreWaitedFor(t *testing.T) {
	big := []string{"15.1s evict big with 0 for nodefs.inodesFree", "15.1s big has ended"}
	for name, tt := range map[string]struct {
		fades time.Duration
		grows int64 // of another one
		want  []string
	}{
		"in time":        {fades: time.Minute},
		"never":          {fades: 1000 * time.Hour, want: big},
		"others take it": {fades: time.Hour, grows: 10, want: big},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bomb := having(signal.ResourceInodes, "bomb", 900, 0)
				bomb.fades = tt.fades
				big := having(signal.ResourceInodes, "big", 50, 0)
				big.grows = tt.grows
				w := newWorld(bomb, big)
				live(t, w, Config{Policy: policy(hard(signal.NodeFsInodesFree, 100, 700))}, func(*Manager) {
					time.Sleep(21 * time.Second)
					synctest.Wait()
					got := slices.DeleteFunc(strings.Split(w.story(), "\n"), func(line string) bool { return strings.Contains(line, "reclaim") })
					want := append([]string{"0s KubeletHasDiskPressure", "0s evict bomb with 0 for nodefs.inodesFree"}, tt.want...)
					if !slices.Equal(got, want) {
						t.Errorf("got %q, want %q", got, want)
					}
					if time.Sleep(time.Minute); tt.want == nil && w.evicted(signal.NodeFsInodesFree) > 0 {
						t.Errorf("%+v", w.decisions())
					}
				})
			})
		})
	}
}

// TestTimeToReclaim: what nobody needs is removed for as long as there is time before a pod has to go.
func TestTimeToReclaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bomb := having(corev1.ResourceEphemeralStorage, "bomb", 0, 0)
		bomb.grows = 50
		w := newWorld(bomb)
		w.slow = time.Hour
		c := Config{Policy: policy(hard(signal.NodeFsAvailable, 500, 0)), Exhaustion: signal.Exhaustion}
		live(t, w, c, func(*Manager) {
			time.Sleep(time.Minute)
			w.mu.Lock()
			defer w.mu.Unlock()
			if after := bomb.end.Sub(w.start); !bomb.killed || after < 16*time.Second || after > 19*time.Second {
				t.Errorf("the bomb goes after %v, of the 20 s until nothing is left:\n%s", after, strings.Join(w.told, "\n"))
			}
		})
	})
}
