package limit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/eviction/signal"
)

// node has pods, what they use, and a directory that they write to.
type node struct {
	t      *testing.T
	dir    string
	came   chan struct{}
	events chan struct{}
	meter  *Meter

	mu      sync.Mutex
	pods    []*corev1.Pod
	used    map[string]int64 // of emptyDirs and of containers
	err     error
	took    time.Duration
	counted map[types.UID]int
	files   int
	bombs   map[types.UID]bool // they have more files than can be counted
	hangs   types.UID          // counting it does not come back
	dead    chan struct{}      // closed when the meter has ended
}

func (n *node) Here() []*corev1.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.pods)
}

func (n *node) Came() <-chan struct{}   { return n.came }
func (n *node) Events() <-chan struct{} { return n.events }

func (n *node) Volume(ctx context.Context, pod *corev1.Pod, name string) (int64, bool) {
	n.count(ctx, pod)
	n.mu.Lock()
	defer n.mu.Unlock()
	used, ok := n.used[name]
	return used, ok
}

func (n *node) Containers(ctx context.Context, pod *corev1.Pod) (map[string]int64, []string, error) {
	n.count(ctx, pod)
	n.mu.Lock()
	defer n.mu.Unlock()
	return map[string]int64{"c": n.used["c"]}, []string{n.dir}, n.err
}

func (n *node) count(ctx context.Context, pod *corev1.Pod) {
	n.mu.Lock()
	n.counted[pod.UID]++
	took := n.took
	n.mu.Unlock()
	if pod.UID == n.hangs {
		<-n.dead
	}
	if n.bombs[pod.UID] {
		<-ctx.Done()
	}
	// Not by a timer's channel: a bubble may run one that is due beside its other timers, and the race detector does
	// not survive that.
	limited, cancel := context.WithTimeout(ctx, took)
	defer cancel()
	<-limited.Done()
}

// write has somebody use so much, and the file system have something written to it.
func (n *node) write(name string, used int64) {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.used[name] = used
	n.files++
	if err := os.WriteFile(filepath.Join(n.dir, fmt.Sprint(n.files)), make([]byte, 1<<18), 0o600); err != nil {
		n.t.Error(err)
	}
}

// counts are how often a pod was counted since the last time somebody asked.
func (n *node) counts(pod *corev1.Pod) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := n.counted[pod.UID]
	n.counted[pod.UID] = 0
	return out
}

func named(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{UID: types.UID(name), Namespace: "default", Name: name}
}

func withVolume(name string) *corev1.Pod {
	limit := resource.MustParse("1Mi")
	return &corev1.Pod{
		ObjectMeta: named(name),
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{
			{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &limit}}},
		}},
	}
}

func withLimit(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: named(name), Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name:      "c",
		Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("1Mi")}},
	}}}}
}

// run has a meter count in a bubble for as long as the body takes. Nobody but the test writes to its file system, which
// is where the machine has one in memory.
func run(t *testing.T, body func(n *node), pods ...*corev1.Pod) {
	runOn(t, func(*node) {}, body, pods...)
}

// runOn is run on a node that is prepared first.
func runOn(t *testing.T, prepare, body func(n *node), pods ...*corev1.Pod) {
	dir, err := os.MkdirTemp("/dev/shm", "limit-") //nolint:usetesting // it is to be on that file system
	if err != nil {
		dir = t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	synctest.Test(t, func(t *testing.T) {
		n := &node{
			t: t, dir: dir, came: make(chan struct{}, 1), events: make(chan struct{}), pods: pods, used: map[string]int64{},
			counted: map[types.UID]int{}, dead: make(chan struct{}),
		}
		n.meter = NewMeter(Config{
			Pods: n, Usage: n, Directories: []string{dir, "/nowhere"}, Sources: []Source{n}, Log: slog.New(slog.DiscardHandler),
		})
		prepare(n)
		ctx, cancel := context.WithCancel(t.Context())
		var wait sync.WaitGroup
		wait.Go(func() { n.meter.Run(ctx) })
		body(n)
		cancel()
		wait.Wait()
		close(n.dead)
	})
}

// next is the next look that somebody is told of.
func (n *node) next() Look {
	n.t.Helper()
	select {
	case l := <-n.meter.Over():
		return l
	case <-time.After(slow + time.Second):
		n.t.Fatal("nobody is above a limit")
		return Look{}
	}
}

func TestMeter(t *testing.T) {
	volume, container, none := withVolume("volume"), withLimit("container"), &corev1.Pod{}
	run(t, func(n *node) {
		n.mu.Lock()
		n.err = errors.New("not now")
		n.mu.Unlock()
		n.write("v", 1<<20)
		n.write("c", 1<<20+1)
		time.Sleep(time.Minute)
		select {
		case l := <-n.meter.Over():
			t.Errorf("nobody is known to be above a limit: %+v", l)
		default:
		}
		if n.counts(volume) == 0 || n.counts(container) == 0 || n.counts(none) > 0 {
			t.Errorf("counted %v", n.counted)
		}
		n.mu.Lock()
		n.err = nil
		n.mu.Unlock()
		n.write("c", 1<<20+1)
		l := n.next()
		if len(l.Over) != 1 || l.Over[0].UID != "container" || l.Over[0].Signal != signal.PodLimit || l.Over[0].Used != 1<<20+1 ||
			l.Over[0].Message != "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. " {
			t.Errorf("%+v", l)
		}
		n.write("v", 1<<20+1)
		for len(l.Over) < 2 {
			l = n.next()
		}
		if e := l.Over[1]; e.UID != "volume" || e.Message != `Usage of EmptyDir volume "v" exceeds the limit "1Mi". ` {
			t.Errorf("%+v", e)
		}
		n.mu.Lock()
		n.pods = nil
		n.mu.Unlock()
		for len(l.Over) > 0 {
			l = n.next()
		}
		synctest.Wait()
		if len(n.meter.pods) > 0 {
			t.Errorf("pods that are gone are remembered: %v", n.meter.pods)
		}
	}, volume, container, none)
}

// TestMeterPace: one that writes nothing is not counted, one that comes nearer to its limit is counted more often, and
// what takes long is done seldom.
func TestMeterPace(t *testing.T) {
	p := withVolume("p")
	run(t, func(n *node) {
		n.write("v", 1)
		time.Sleep(time.Minute)
		n.counts(p)
		time.Sleep(time.Hour)
		if got := n.counts(p); got > 0 {
			t.Errorf("nothing is written, and counted %d times", got)
		}
		for i := range int64(200) {
			n.write("v", 1+i*5000)
			time.Sleep(100 * time.Millisecond)
		}
		if got := n.counts(p); got < 15 || got > 100 {
			t.Errorf("counted %d times in the 20 s until it is at its limit", got)
		}
		time.Sleep(time.Minute)
		n.counts(p)
		n.write("v", 1)        // whoever looks from here on sees it
		n.events <- struct{}{} // the disk is busy
		synctest.Wait()
		if got := n.counts(p); got == 0 {
			t.Error("not counted when the disk is busy")
		}
		n.mu.Lock()
		n.took = 200 * time.Millisecond
		n.mu.Unlock()
		for range 20 {
			n.write("v", 1<<19)
			time.Sleep(time.Second)
		}
		if got := n.counts(p); got > 8 {
			t.Errorf("counted %d times in 20 s, though that takes a fifth of a second", got)
		}
	}, p)
}

// TestMeterHangs: pods whose files cannot be counted do not keep the others, and the end of the meter is not kept
// either.
func TestMeterHangs(t *testing.T) {
	var pods []*corev1.Pod
	for i := range parallel - 1 {
		pods = append(pods, withVolume(fmt.Sprint("slow", i)))
	}
	run(t, func(n *node) {
		n.mu.Lock()
		n.took = 5 * time.Minute
		n.mu.Unlock()
		n.write("v", 1)
		time.Sleep(time.Second)
		n.mu.Lock()
		n.took = 0
		n.pods = append(n.pods, withLimit("p"))
		n.mu.Unlock()
		n.write("c", 2<<20)
		n.came <- struct{}{}
		began := time.Now()
		if l := n.next(); len(l.Over) != 1 || l.Over[0].UID != "p" || time.Since(began) > time.Second {
			t.Errorf("after %v: %+v", time.Since(began), l)
		}
		n.mu.Lock()
		n.took = time.Hour // the rest is given up
		n.mu.Unlock()
	}, pods...)
}

// TestMeterDeadDisk: file systems that do not answer are not waited for, neither for what is to be counted elsewhere
// nor at the end. Nobody asks one again before it has answered.
func TestMeterDeadDisk(t *testing.T) {
	volume, container := withVolume("volume"), withLimit("container")
	var asked atomic.Int32
	dead := func(n *node) {
		n.hangs = container.UID
		n.meter.statfs = func(dir string, now *unix.Statfs_t) error {
			if dir == "/nowhere" {
				asked.Add(1)
				<-n.dead
			}
			return unix.Statfs(dir, now)
		}
	}
	runOn(t, dead, func(n *node) {
		n.write("v", 2<<20)
		l := n.next()
		if len(l.Over) != 1 || l.Over[0].UID != "volume" {
			t.Errorf("%+v", l)
		}
		for range 2 * parallel {
			time.Sleep(time.Minute)
			n.write("v", 2<<20)
		}
		if got := asked.Load(); got == 0 || got > 2 {
			t.Errorf("%d threads are in a file system that does not answer", got)
		}
		if got := n.counts(container); got != 1 {
			t.Errorf("a pod whose files do not answer was counted %d times", got)
		}
		for began := time.Now(); !l.Over[0].Time.After(began); {
			l = n.next()
		}
	}, volume, container)
}
