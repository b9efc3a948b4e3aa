package apiserver

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/source/apiserver/kept"
)

func keptIn(t *testing.T, dir string) *kept.Store {
	t.Helper()
	s, err := kept.Open(kept.Config{Dir: dir, Node: "node1", Every: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func keepingIn(dir *kept.Store) func(*Config) {
	return func(c *Config) { c.Keep, c.pace.absent = dir, 20*time.Millisecond }
}

// TestKeptPods: a node that starts without its server has its pods, and when the server is back what that says counts.
func TestKeptPods(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "offline")
	f := newFake()
	f.put("configmaps", configMap("a", "1"))
	f.put("services", &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s", UID: "s"}})
	f.put("pods", podOn("node1", "stays", "u1", envFrom("a", "missing")))
	f.put("pods", podOn("node1", "goes", "u2", func(p *corev1.Pod) { p.Spec.EnableServiceLinks = nil }))
	f.put("pods", podOn("node1", "again", "u3", nil))
	f.put("pods", podOn("node1", "done", "u4", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }))
	now := metav1.Now()
	f.put("pods", podOn("node1", "ends", "u5", func(p *corev1.Pod) { p.DeletionTimestamp = &now }))
	c := consume(t, f, keepingIn(keptIn(t, dir)))
	c.waitSynced()
	c.stop()
	if n := len(keptIn(t, dir).Load()); n != 3 {
		t.Fatalf("%d pods are kept", n)
	}
	f.set(func() { f.down = errRefused })
	f.cut(true)
	c = consume(t, f, keepingIn(keptIn(t, dir)))
	c.waitPod("stays", "u1")
	c.waitPod("goes", "u2")
	c.waitPod("again", "u3")
	c.order(`+configmap "default/a"`, "+stays u1")
	c.order(`+service "default/s"`, "+goes u2")
	c.order("all Service", "+goes u2")
	if c.synced != 0 || c.listed != 0 || len(c.seen) != 0 || len(c.pods) != 3 {
		t.Errorf("synced %d, listed %d, seen %v", c.synced, c.listed, c.seen)
	}
	f.remove("pods", "default", "goes")
	f.remove("pods", "default", "again")
	f.put("pods", podOn("node1", "again", "u6", nil))
	f.put("pods", podOn("node2", "goes", "u7", nil))
	f.put("configmaps", configMap("a", "2"))
	f.set(func() { f.down = nil })
	c.waitSynced()
	c.waitPod("again", "u6")
	c.order("-goes")
	c.order("-again", "+again u6")
	c.wait("the object is the server's", func() bool {
		m, ok := c.objects[cm("a")].(*corev1.ConfigMap)
		return ok && m.Data["k"] == "2" && c.objects[object.RefTo(object.Service, "default", "s")] != nil
	})
	c.waitPod("goes", "")
	if c.listed != 1 || len(c.seen) != 4 {
		t.Errorf("listed %d, seen %v", c.listed, c.seen)
	}
}

// TestServerIsFirst: what the server says counts, whatever was kept, when it says it in time.
func TestServerIsFirst(t *testing.T) {
	dir := t.TempDir()
	k := keptIn(t, dir)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	k.Save([]kept.Pod{{Pod: podOn("node1", "old", "u1", nil)}}, nil)
	k.Run(ctx)
	f := newFake()
	f.put("pods", podOn("node1", "p", "u2", nil))
	c := consume(t, f, func(cfg *Config) { cfg.Keep, cfg.pace.absent = keptIn(t, dir), time.Hour })
	c.waitSynced()
	c.waitPod("p", "u2")
	if len(c.pods) != 1 {
		t.Errorf("%v", c.pods)
	}
}

// slowKeeper says that something is kept when the test does.
type slowKeeper struct{ saves chan save }

type save struct {
	pods []kept.Pod
	done func()
}

func (slowKeeper) Load() []kept.Pod                    { return nil }
func (slowKeeper) Run(ctx context.Context)             { <-ctx.Done() }
func (k slowKeeper) Save(pods []kept.Pod, done func()) { k.saves <- save{pods, done} }

// TestKeptFirst: no pod is told of before it is kept, those that come meanwhile go with the next save, and all that the
// server had at first are there before that is said.
func TestKeptFirst(t *testing.T) {
	k := slowKeeper{make(chan save, 1000)}
	f := newFake()
	for i := range 3 {
		f.put("pods", podOn("node1", fmt.Sprint("first", i), fmt.Sprint("f", i), nil))
	}
	c := consume(t, f, func(cfg *Config) { cfg.Keep, cfg.pace.keep = k, time.Hour })
	there, saves := map[string]bool{}, 0
	var disk sync.Mutex
	end := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			select {
			case <-end:
				return
			case s := <-k.saves:
				disk.Lock()
				c.mu.Lock()
				saves++
				for name := range c.pods {
					if !there[name] {
						t.Errorf("pod %s is told of and not kept", name)
					}
				}
				for _, p := range s.pods {
					there[p.Pod.Namespace+"/"+p.Pod.Name] = true
				}
				c.mu.Unlock()
				s.done()
				disk.Unlock()
			}
		}
	})
	defer wait.Wait()
	defer close(end)
	c.waitSynced()
	disk.Lock()
	c.mu.Lock()
	before := saves
	c.mu.Unlock()
	for i := range 50 {
		f.put("pods", podOn("node1", fmt.Sprint("p", i), fmt.Sprint("u", i), nil))
	}
	f.put("pods", podOn("node1", "gone", "g", nil))
	f.remove("pods", "default", "gone")
	c.wait("all seen", func() bool { return len(c.seen) >= 53 })
	disk.Unlock()
	for i := range 50 {
		c.waitPod(fmt.Sprint("p", i), fmt.Sprint("u", i))
	}
	c.mu.Lock()
	if saves-before > 10 {
		t.Errorf("%d saves of 50 pods that came at once", saves-before)
	}
	c.mu.Unlock()
	for _, name := range []string{"0", "1", "2"} {
		c.order("+first"+name+" f"+name, "synced")
	}
	c.waitPod("gone", "")
}

// TestEndsKeptFirst: that a pod is to end is told when it does not start again, also of one whose start is being kept,
// and of one that the server had so from the first.
func TestEndsKeptFirst(t *testing.T) {
	k := slowKeeper{make(chan save, 1000)}
	f := newFake()
	ends := func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) }
	f.put("pods", podOn("node1", "first", "f", ends))
	f.put("pods", podOn("node1", "p", "u", nil))
	c := consume(t, f, func(cfg *Config) { cfg.Keep, cfg.pace.keep = k, time.Hour })
	// keep has the next save be kept, which is noted beside what is told.
	keep := func(s save) {
		var names []string
		for _, p := range s.pods {
			names = append(names, p.Pod.Name)
		}
		slices.Sort(names)
		c.mu.Lock()
		c.history = append(c.history, fmt.Sprint("kept ", names))
		c.mu.Unlock()
		s.done()
	}
	until := func(told func() bool) {
		for {
			c.mu.Lock()
			ok := told()
			c.mu.Unlock()
			if ok {
				return
			}
			select {
			case s := <-k.saves:
				keep(s)
			case <-time.After(time.Millisecond):
			}
		}
	}
	until(func() bool { return c.synced == 1 })
	f.put("pods", podOn("node1", "q", "v", nil))
	hangs := <-k.saves
	f.put("pods", podOn("node1", "p", "u", ends))
	f.put("pods", podOn("node1", "q", "v", ends))
	f.put("configmaps", configMap("a", "1"))
	f.put("pods", podOn("node1", "r", "w", envFrom("a")))
	c.wait("what is later is told", func() bool { return c.objects[cm("a")] != nil })
	keep(hangs)
	ending := func(name string) bool {
		p := c.pods["default/"+name]
		return p != nil && p.DeletionTimestamp != nil
	}
	until(func() bool { return ending("p") && ending("q") && c.pods["default/r"] != nil })
	c.order("kept [p]", "+first f", "+p u", "kept [p q]", "kept [r]", "+p u")
	c.order("kept [p q]", "kept [r]", "+q v")
	if n := strings.Count(strings.Join(c.history, ","), "+q v"); n != 1 {
		t.Errorf("the pod that ended before it was begun with is told of %d times: %v", n, c.history)
	}
}

// TestKeeperHangs: pods do not wait for ever for a disk that hangs.
func TestKeeperHangs(t *testing.T) {
	f := newFake()
	f.put("pods", podOn("node1", "a", "u1", nil))
	c := consume(t, f, func(cfg *Config) { cfg.Keep, cfg.pace.keep = slowKeeper{make(chan save, 1000)}, time.Millisecond })
	c.waitSynced()
	c.waitPod("a", "u1")
	f.put("pods", podOn("node1", "b", "u2", nil))
	c.waitPod("b", "u2")
	if n := c.logs.count("the disk takes too long"); n != 1 {
		t.Errorf("it is said %d times", n)
	}
}
