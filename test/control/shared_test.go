package control

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// sharers counts the tests that have shared the control plane: each has another namespace.
var sharers atomic.Int64

// ofLabel is on the nodes of a test that shares a control plane, with its namespace.
const ofLabel = "test.example.com/of"

// share is the control plane that tests share, which has its controllers and the scheduler, with a namespace of this
// test's own. A test that ends, damages or configures it, or that must have it to itself, starts its own: one that
// counts all nodes, or makes what others hear of, as a default class of storage.
//
// What is in no namespace has names by named, and the test takes it away. Nodes are those of hollow. Pods come to no
// other nodes by here.
func share(t *testing.T) *plane {
	t.Helper()
	p := known(common.Get(t, binary), fmt.Sprintf("test-%d", sharers.Add(1)))
	p.shared = true
	if _, err := p.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.ns}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.leave(t) })
	p.equipped(t, p.ns)
	return p
}

// leave has the namespace go. Others need not wait until it has: none has its name.
func (p *plane) leave(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	if err := p.client.CoreV1().Namespaces().Delete(ctx, p.ns, metav1.DeleteOptions{}); err != nil {
		t.Errorf("the namespace is not deleted: %v", err)
	}
	// Nobody ends the pods on nodes that are hollow.
	now := int64(0)
	if err := p.client.CoreV1().Pods(p.ns).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}); err != nil {
		t.Errorf("the pods are not deleted: %v", err)
	}
}

// named is a name for what is in no namespace: as it is where the test has the control plane to itself.
func (p *plane) named(name string) string {
	if !p.shared {
		return name
	}
	return p.ns + "-" + name
}

// here has pods come to nodes of this test alone.
func (p *plane) here(s *corev1.PodSpec) {
	if !p.shared {
		return
	}
	if s.NodeSelector == nil {
		s.NodeSelector = map[string]string{}
	}
	s.NodeSelector[ofLabel] = p.ns
}

// template is a template of the pods of one app, which come to nodes of this test.
func (p *plane) template(app, image string) corev1.PodTemplateSpec {
	o := template(app, image)
	p.here(&o.Spec)
	return o
}

// away takes a node away, with its lease.
func (p *plane) away(t *testing.T, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	for what, err := range map[string]error{
		"node":  p.client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}),
		"lease": p.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Delete(ctx, name, metav1.DeleteOptions{}),
	} {
		if err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("the %s of node %s is not deleted: %v", what, name, err)
		}
	}
}

// TestShare has two tests share a control plane: none has what is the other's, and the pods of one that are left go
// without a node.
func TestShare(t *testing.T) {
	t.Parallel()
	one, other := share(t), share(t)
	h := one.hollow(t, "a")
	other.hollow(t, "a")
	if h.names[0] == "a" || one.ns == other.ns {
		t.Errorf("nodes are %q, namespaces %q and %q", h.names, one.ns, other.ns)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	one.here(&pod.Spec)
	if _, err := one.client.CoreV1().Pods(one.ns).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the pod runs on the node of its test", func() error {
		o, err := one.client.CoreV1().Pods(one.ns).Get(t.Context(), "p", metav1.GetOptions{})
		if err == nil && (o.Status.Phase != corev1.PodRunning || o.Spec.NodeName != one.named("a")) {
			err = fmt.Errorf("it is %s on %q", o.Status.Phase, o.Spec.NodeName)
		}
		return err
	})
	if all, err := other.client.CoreV1().Pods(other.ns).List(t.Context(), metav1.ListOptions{}); err != nil || len(all.Items) > 0 {
		t.Errorf("the other test has %d pods, %v", len(all.Items), err)
	}
}
