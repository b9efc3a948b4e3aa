package control

import (
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	have "github.com/berth-node/berth/agent/object"
)

// waitsForAll is how long the agent holds a pod back at most for what it refers to.
const waitsForAll = 30 * time.Second

// TestNodeSourceMany has one pod refer to a thousand Secrets, a thousand pods to one each, and the server be frozen.
func TestNodeSourceMany(t *testing.T) {
	t.Parallel()
	const many = 1000
	p := startAlone(t, t.TempDir(), "0")
	ctx := t.Context()
	p.namespace(t)
	p.objects(t, 0, 0)
	atOnce(many, func(i int) {
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("s%d", i), Namespace: ns}, Data: map[string][]byte{"k": []byte("v")}}
		if _, err := p.client.CoreV1().Secrets(ns).Create(ctx, s, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Error(err)
		}
	})
	w := p.follow(t, "node1")
	var took []time.Duration
	for i := range 20 {
		name := fmt.Sprintf("one%d", i)
		pod := boundPod("node1", name, 0, i)
		began := time.Now()
		p.create(t, pod)
		w.wait(t, "the pod", func() bool { return w.pods[name] != nil })
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	t.Logf("from asking for a pod to hearing of it, with a Secret that is new: %s at the median, %s at most", took[10], took[19])
	big := boundPod("node1", "big", 0, 0)
	for i := range many {
		big.Spec.Containers[0].EnvFrom = append(big.Spec.Containers[0].EnvFrom, corev1.EnvFromSource{
			SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: fmt.Sprintf("s%d", i)}},
		})
	}
	began := time.Now()
	p.create(t, big)
	w.wait(t, "the pod", func() bool { return w.pods["big"] != nil })
	after := time.Since(began)
	t.Logf("a pod with %d Secrets came after %s", many, after)
	w.mu.Lock()
	if len(w.early) > 0 && after < waitsForAll {
		t.Errorf("%d came after a pod that refers to them", len(w.early))
	}
	w.mu.Unlock()
	began = time.Now()
	atOnce(many, func(i int) { p.create(t, boundPod("node1", fmt.Sprintf("p%d", i), 0, i)) })
	w.wait(t, "all pods", func() bool { return len(w.pods) == many+21 })
	t.Logf("%d pods came after %s", many, time.Since(began))
	p.agree(t, w, "node1")
	// A frozen server keeps its connections. What it has to say is heard when it goes on.
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second) // it is frozen for a while
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s7", Namespace: ns}, Data: map[string][]byte{"k": []byte("w")}}
	if _, err := p.client.CoreV1().Secrets(ns).Update(ctx, s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.wait(t, "the Secret has changed", func() bool {
		s, ok := w.objects[have.RefTo(have.Secret, ns, "s7")].(*corev1.Secret)
		return ok && string(s.Data["k"]) == "w"
	})
	zero := int64(0)
	// The server gives one request a minute.
	until(t, "all pods are deleted", func() error {
		return p.client.CoreV1().Pods(ns).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &zero}, metav1.ListOptions{})
	})
	w.wait(t, "all is forgotten", func() bool { return len(w.pods)+len(w.objects) == 0 })
}

// atOnce does something for each number, some at a time.
func atOnce(n int, do func(i int)) {
	var wait sync.WaitGroup
	slots := make(chan struct{}, 16)
	for i := range n {
		slots <- struct{}{}
		wait.Go(func() {
			do(i)
			<-slots
		})
	}
	wait.Wait()
}
