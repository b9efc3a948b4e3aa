package apiserver

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/desired"
)

func TestMirror(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		var uid atomic.Value
		uid.Store(types.UID(""))
		w := begin(t, s, func(c *Config) { c.NodeUID = func() types.UID { return uid.Load().(types.UID) } })
		pod := staticPod("a", "one")
		pod.Spec.Priority = new(int32(7))
		w.Put(as(pod, corev1.PodRunning, true))
		time.Sleep(time.Minute)
		w.Listed()
		time.Sleep(time.Minute)
		want(t, s)
		uid.Store(types.UID("node-uid"))
		w.Registered()
		settle(t, w)
		want(t, s, "create a", "patch a")
		has := s.get(keyOf(pod))
		owner := has.OwnerReferences[0]
		if has.Annotations[desired.AnnotationMirror] != "one" || has.Status.Phase != corev1.PodRunning || has.Spec.Priority != nil ||
			owner.UID != "node-uid" || owner.Kind != "Node" || !*owner.Controller || has.Spec.NodeName != "node" {
			t.Errorf("the server has %+v", has)
		}

		// Somebody deletes it: at once, or with a grace that nobody but the node ends.
		s.mu.Lock()
		s.remove(keyOf(pod))
		s.mu.Unlock()
		settle(t, w)
		time.Sleep(time.Second)
		want(t, s, "create a", "patch a", "create a", "patch a")
		s.change(keyOf(pod), func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) })
		settle(t, w)
		time.Sleep(time.Second)
		want(t, s, "create a", "patch a", "create a", "patch a", "delete a", "create a", "patch a")

		// The manifest changes.
		s.calls = nil
		next := staticPod("a", "two")
		w.Put(as(next, corev1.PodPending, false))
		w.Delete(pod)
		settle(t, w)
		time.Sleep(time.Second)
		want(t, s, "delete a", "create a", "patch a")
		if has := s.get(keyOf(pod)); has.Annotations[desired.AnnotationMirror] != "two" {
			t.Errorf("the mirror pod is of %s", has.Annotations[desired.AnnotationMirror])
		}

		// It was evicted, and returns.
		w.Put(as(next, corev1.PodFailed, false))
		settle(t, w)
		s.calls = nil
		w.Put(as(next, corev1.PodRunning, true))
		settle(t, w)
		time.Sleep(time.Second)
		want(t, s, "delete a", "create a", "patch a")

		s.calls = nil
		w.Delete(next)
		settle(t, w)
		want(t, s, "delete a")
		if len(w.mirrors) != 0 || len(s.pods) != 0 {
			t.Errorf("left: %v, %v", w.mirrors, s.pods)
		}
	})
}

// What an earlier agent has left goes when all static pods are known, and no sooner; what is still wanted stays.
func TestMirrorsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		w := begin(t, s, nil)
		for _, name := range []string{"stays", "late", "goes"} {
			s.add(mirrorOf(as(staticPod(name, name), corev1.PodRunning, true), "node", "node-uid"))
		}
		w.Listed()
		time.Sleep(time.Minute)
		want(t, s)
		w.Put(as(staticPod("stays", "stays"), corev1.PodRunning, true))
		w.Settled()
		settle(t, w)
		time.Sleep(time.Second)
		want(t, s, "patch stays")
		w.Put(as(staticPod("late", "late"), corev1.PodRunning, true)) // its runtime was slow to answer
		time.Sleep(time.Minute)
		got := slices.Sorted(slices.Values(s.writes()))
		if !slices.Equal(got, []string{"delete goes", "patch late", "patch stays"}) {
			t.Errorf("calls %q", got)
		}
	})
}

// A static pod that refers to objects has none, and neither has one whose name another pod has, or that the server does
// not take; each is told of, and others go on.
func TestNoMirror(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		w := begin(t, s, nil)
		w.Listed()
		other := apiPod("other")
		other.UID = "api"
		far := apiPod("far")
		far.Spec.NodeName = "another"
		s.told = nil
		s.add(other)
		s.add(far)
		refers := staticPod("refers", "one")
		refers.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}}}
		for _, p := range []*corev1.Pod{refers, staticPod("other", "two"), staticPod("fine", "three"), staticPod("far", "four")} {
			w.Put(as(p, corev1.PodRunning, true))
		}
		time.Sleep(time.Hour)
		tries := 0
		for _, c := range s.writes() {
			switch c {
			case "create other", "create far":
				tries++
			case "create fine", "patch fine":
			default:
				t.Errorf("call %s", c)
			}
		}
		if tries == 0 || tries > 80 || s.get(keyOf(other)).UID != "api" {
			t.Errorf("%d tries leave %v", tries, s.get(keyOf(other)))
		}
		if n := w.Mirrors(); n != 4 {
			t.Errorf("%d mirror pods are to be", n)
		}
	})
}

func TestCannotMirror(t *testing.T) {
	for kind, with := range map[string]func(*corev1.PodSpec){
		"": func(s *corev1.PodSpec) { s.RuntimeClassName, s.PriorityClassName = new("a"), "b" },
		"ConfigMap": func(s *corev1.PodSpec) {
			s.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "c"}}}}
		},
		"Secret": func(s *corev1.PodSpec) { s.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "s"}} },
		"PersistentVolumeClaim": func(s *corev1.PodSpec) {
			s.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
		},
		"ServiceAccount": func(s *corev1.PodSpec) { s.ServiceAccountName = "robot" },
	} {
		pod := staticPod("a", "one")
		with(&pod.Spec)
		if got := cannotMirror(pod); got != kind {
			t.Errorf("%q keeps it, want %q", got, kind)
		}
	}
}
