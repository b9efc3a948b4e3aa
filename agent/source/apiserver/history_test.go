package apiserver

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/object"
)

// TestHistories holds what a consumer knows in the end to what the server has, whatever has happened on the way. That
// no pod takes the place of another one that was not removed, the consumer itself checks with every update.
func TestHistories(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for round := range uint64(30) {
		t.Run(fmt.Sprint(round), func(t *testing.T) { history(t, rand.New(rand.NewPCG(seed, round))) })
	}
}

const names = 6

func history(t *testing.T, r *rand.Rand) {
	f := newFake()
	f.repeats = r.IntN(2) == 0
	f.plain = r.IntN(4) == 0
	uids := 0
	newPod := func(name string) {
		uids++
		f.put("pods", podOn("node1", name, fmt.Sprintf("u%d", uids), envFrom(fmt.Sprintf("m%d", r.IntN(names)), fmt.Sprintf("m%d", r.IntN(names)))))
	}
	for i := range names / 2 {
		newPod(fmt.Sprintf("p%d", i))
	}
	c := consume(t, f, nil)
	var backup map[string]object.Object
	var version int
	for range 150 {
		name, m := fmt.Sprintf("p%d", r.IntN(names)), fmt.Sprintf("m%d", r.IntN(names))
		switch r.IntN(12) {
		case 0, 1, 2:
			var pod *corev1.Pod
			f.set(func() { pod, _ = f.objects[id("pods", "default", name)].(*corev1.Pod) })
			if pod == nil {
				newPod(name)
				break
			}
			pod = pod.DeepCopy()
			pod.Labels = map[string]string{"n": fmt.Sprint(r.IntN(1000))}
			f.put("pods", pod)
		case 3:
			f.remove("pods", "default", name)
		case 4:
			f.remove("pods", "default", name)
			newPod(name)
		case 5, 6:
			f.put("configmaps", configMap(m, fmt.Sprint(r.IntN(1000))))
		case 7:
			f.remove("configmaps", "default", m)
		case 8:
			f.cut(r.IntN(2) == 0)
		case 9:
			f.set(func() { f.down = errRefused })
		case 10:
			f.set(func() { f.down = nil })
		case 11:
			c.mu.Lock()
			c.stopped = !c.stopped
			c.cond.Broadcast()
			c.mu.Unlock()
		}
		switch r.IntN(60) {
		case 0:
			f.set(func() {
				backup, version = maps.Clone(f.objects), f.version
			})
		case 1:
			restore(f, backup, version)
			backup = nil
		}
		if r.IntN(3) == 0 {
			time.Sleep(time.Duration(r.IntN(300)) * time.Microsecond) // chance, not a wait
		}
	}
	f.set(func() { f.down = nil })
	c.mu.Lock()
	c.stopped = false
	c.cond.Broadcast()
	c.mu.Unlock()
	agree(c, f)
}

// restore has a server that was away come back as it was. What it does after that makes its history another one.
func restore(f *fakeServer, backup map[string]object.Object, version int) {
	if backup == nil {
		return
	}
	f.notices()
	f.set(func() { f.objects, f.version, f.history, f.floor, f.down = backup, version, nil, version, nil })
}

// agree waits until the consumer has what the server has, and no objects but those that pods refer to.
func agree(c *consumer, f *fakeServer) {
	c.t.Helper()
	c.waitSynced()
	c.wait("the same as the server", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		pods, wanted := 0, map[object.Ref]bool{}
		for _, o := range f.there("pods", "", "") {
			pods++
			has := c.pods["default/"+o.GetName()]
			if has == nil || has.UID != o.GetUID() || has.ResourceVersion != o.GetResourceVersion() ||
				c.seen["default/"+o.GetName()] != string(o.GetUID())+"/"+o.GetResourceVersion() {
				return false
			}
			for _, e := range o.(*corev1.Pod).Spec.Containers[0].EnvFrom {
				wanted[cm(e.ConfigMapRef.Name)] = true
			}
		}
		objects := 0
		for _, o := range f.there("configmaps", "", "") {
			ref := cm(o.GetName())
			has := c.objects[ref]
			if !wanted[ref] {
				if has != nil {
					return false
				}
				continue
			}
			objects++
			if has == nil || has.GetResourceVersion() != o.GetResourceVersion() {
				return false
			}
		}
		return len(c.pods) == pods && len(c.seen) == pods && len(c.objects) == objects
	})
}
