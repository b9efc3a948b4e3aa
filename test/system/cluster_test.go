package system

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/berth-node/berth/test/plane"
)

// member is a node that has joined a cluster.
type member struct {
	*Node
	plane *plane.Plane
	name  string
}

// joined starts a control plane and a node that joins it with a bootstrap token.
func joined(t *testing.T, args ...string) *member {
	t.Helper()
	return joinedTo(t, nil, args...)
}

// joinedTo is joined, with flags of the control plane.
func joinedTo(t *testing.T, flags []string, args ...string) *member {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: namespaces, cgroups and mounts are made for real")
	}
	dir, err := os.MkdirTemp("/var/tmp", "berth-plane-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	m := &member{plane: plane.Start(t, bin("berth-control"), dir, flags...), name: "node"}
	for _, a := range args {
		if name, ok := strings.CutPrefix(a, "--node-name="); ok {
			m.name = name
		}
	}
	m.Node = newNode(t, args...)
	m.args = append(m.args, m.joining(t, m.plane)...)
	m.start()
	m.equipped("default")
	return m
}

// joining are the flags by which a node joins a cluster, with a token of its own.
func (n *Node) joining(t *testing.T, p *plane.Plane) []string {
	t.Helper()
	bootstrap := filepath.Join(n.Dir, "bootstrap")
	p.Bootstrap(t, bootstrap)
	return []string{
		"--kubeconfig=" + filepath.Join(n.Dir, "kubeconfig"), "--bootstrap-kubeconfig=" + bootstrap, "--network=builtin",
		"--address=127.0.0.1", "--node-ip=127.0.0.1", fmt.Sprintf("--port=%d", freePort(t)),
		"--client-ca-file=" + filepath.Join(p.Dir, "pki", "ca.crt"),
	}
}

// equipped waits until a namespace has what the admission of pods asks for.
func (m *member) equipped(name string) {
	m.t.Helper()
	m.eventually("the account and the authorities of namespace "+name, func() error {
		_, err := m.plane.Client.CoreV1().ServiceAccounts(name).Get(m.t.Context(), "default", metav1.GetOptions{})
		if err == nil {
			_, err = m.plane.Client.CoreV1().ConfigMaps(name).Get(m.t.Context(), "kube-root-ca.crt", metav1.GetOptions{})
		}
		return err
	})
}

// bound is a pod of the API that is bound to the node.
func (m *member) bound(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.PodSpec{
			NodeName: m.name, TerminationGracePeriodSeconds: new(int64(1)),
			Containers: []corev1.Container{{
				Name: "main", Image: image, ImagePullPolicy: corev1.PullNever,
				Command: []string{"sh", "-c", "echo begun; trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"},
			}},
		},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func (m *member) create(p *corev1.Pod) *corev1.Pod {
	m.t.Helper()
	made, err := m.plane.Client.CoreV1().Pods(p.Namespace).Create(m.t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		m.t.Fatal(err)
	}
	return made
}

// follow waits until the API server's watch says so of a pod, which is nil while there is none.
func (m *member) follow(name, what string, ok func(*corev1.Pod) bool) *corev1.Pod {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	pods := m.plane.Client.CoreV1().Pods("default")
	for {
		now, err := pods.List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		if err != nil {
			m.t.Fatalf("list pods: %v", err)
		}
		var p *corev1.Pod
		if len(now.Items) > 0 {
			p = &now.Items[0]
		}
		if ok(p) {
			return p
		}
		w, err := pods.Watch(ctx, metav1.ListOptions{
			FieldSelector: "metadata.name=" + name, ResourceVersion: now.ResourceVersion,
		})
		if err != nil {
			m.t.Fatalf("watch pods: %v", err)
		}
		for e := range w.ResultChan() {
			p, _ = e.Object.(*corev1.Pod)
			if e.Type == "DELETED" {
				p = nil
			}
			if ok(p) {
				w.Stop()
				return p
			}
		}
		if ctx.Err() != nil {
			m.t.Fatalf("waited for pod %s to be %s; it is %+v\n%s", name, what, p, m.logTail())
		}
	}
}

func (m *member) apiReady(name string) *corev1.Pod {
	m.t.Helper()
	return m.follow(name, "ready", isReady)
}

func (m *member) apiGone(name string) {
	m.t.Helper()
	m.follow(name, "gone", func(p *corev1.Pod) bool { return p == nil })
}

func (m *member) delete(name string, grace *int64) {
	m.t.Helper()
	err := m.plane.Client.CoreV1().Pods("default").Delete(m.t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: grace})
	if err != nil {
		m.t.Fatal(err)
	}
}

// nodeReady waits until the API server has the node as ready.
func (m *member) nodeReady() *corev1.Node {
	m.t.Helper()
	var node *corev1.Node
	m.eventually("the node to be ready in the API", func() (err error) {
		node, err = m.plane.Client.CoreV1().Nodes().Get(m.t.Context(), m.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %+v", node.Status.Conditions)
	})
	return node
}

// execute runs a command in a pod by way of the API server.
func (m *member) execute(pod string, command ...string) (string, error) {
	req := m.plane.Client.CoreV1().RESTClient().Post().Resource("pods").Namespace("default").Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Command: command, Stdout: true, Stderr: true}, scheme.ParameterCodec)
	e, err := remotecommand.NewWebSocketExecutor(m.plane.Config, http.MethodGet, req.URL().String())
	if err != nil {
		return "", err
	}
	var out, errs bytes.Buffer
	ctx, cancel := context.WithTimeout(m.t.Context(), limit)
	defer cancel()
	err = e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &out, Stderr: &errs})
	return out.String() + errs.String(), err
}
