package apiserver

import (
	"context"
	"path/filepath"
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
	k.Save([]kept.Pod{{Pod: podOn("node1", "old", "u1", nil)}})
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
