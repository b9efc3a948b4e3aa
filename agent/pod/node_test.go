package pod

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/event"
	"github.com/berth-node/berth/agent/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testNode is a node in memory with a clock of its own. Its agent can be restarted.
type testNode struct {
	t       *testing.T
	rt      *fake
	cgroups *fakeCgroups
	cfg     Config
	events  *event.Ring

	m       *Manager
	updates chan desired.Update
	stop    func()
	want    map[types.NamespacedName]*corev1.Pod
}

// onNode runs a test on a node, with time that passes only when everybody waits.
func onNode(t *testing.T, test func(n *testNode)) {
	t.Helper()
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		n := &testNode{t: t, rt: newFake(), cgroups: &fakeCgroups{pods: map[types.UID]bool{}}, want: map[types.NamespacedName]*corev1.Pod{}}
		n.cfg = Config{
			Runtime: n.rt, Cgroups: n.cgroups, Volumes: volume.New(volume.Config{Root: root}),
			Node:    NodeConfig{Name: "node", IPs: func() []string { return []string{"192.0.2.1"} }, Memory: 8 << 30},
			RootDir: root, LogDir: filepath.Join(root, "logs"), DNS: DNSConfig{ResolvConf: filepath.Join(root, "resolv.conf")},
		}
		if testing.Verbose() && os.Getenv("BERTH_TEST_LOG") != "" {
			n.cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
		}
		n.start()
		defer func() { n.stop() }()
		test(n)
	})
}

// start starts the agent, with what is wanted now.
func (n *testNode) start() {
	n.t.Helper()
	n.startWith(func(*Config) {})
}

// startWith starts it with a configuration that is changed first.
func (n *testNode) startWith(change func(*Config)) {
	n.t.Helper()
	n.events = event.NewRing(event.Config{})
	n.cfg.Events, n.cfg.TracerProvider, n.cfg.Statuses = event.NewRecorder("node", n.events), nil, nil
	change(&n.cfg)
	m, err := New(n.cfg)
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	updates, done := make(chan desired.Update), make(chan struct{})
	go func() {
		defer close(done)
		if err := m.Run(ctx, updates); err != nil {
			n.t.Error(err)
		}
	}()
	n.m, n.updates = m, updates
	n.stop = sync.OnceFunc(func() { cancel(); <-done })
	for key, pod := range n.want {
		n.updates <- desired.Update{Key: key, Pod: pod, Origin: desired.OriginOf(pod)}
	}
	n.updates <- desired.Update{Synced: true}
	synctest.Wait()
}

func (n *testNode) restart() {
	n.t.Helper()
	n.restartWith(func(*Config) {})
}

func (n *testNode) restartWith(change func(*Config)) {
	n.t.Helper()
	n.stop()
	n.startWith(change)
}

func (n *testNode) apply(pods ...*corev1.Pod) {
	for _, pod := range pods {
		key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
		n.want[key] = pod
		n.updates <- desired.Update{Key: key, Pod: pod, Origin: desired.OriginOf(pod)}
	}
	synctest.Wait()
}

func (n *testNode) remove(pods ...*corev1.Pod) {
	for _, pod := range pods {
		key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
		delete(n.want, key)
		n.updates <- desired.Update{Key: key}
	}
	synctest.Wait()
}

// pass lets time pass.
func (n *testNode) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// pod is what the agent says of a pod.
func (n *testNode) pod(name string) *corev1.Pod {
	n.t.Helper()
	p, ok := n.m.Get("default", name)
	if !ok {
		n.t.Fatalf("pod %s is not known", name)
	}
	return p
}

// gone fails unless nothing is left of the pods.
func (n *testNode) gone(pods ...*corev1.Pod) {
	n.t.Helper()
	for _, p := range pods {
		if got, ok := n.m.Get(p.Namespace, p.Name); ok && got.UID == p.UID {
			n.t.Errorf("pod %s is still known: %s", p.Name, describe(got))
		}
		n.rt.mu.Lock()
		for _, s := range n.rt.sandboxes {
			if s.GetMetadata().GetUid() == string(p.UID) {
				n.t.Errorf("pod %s still has sandbox %s", p.Name, s.GetId())
			}
		}
		n.rt.mu.Unlock()
		if n.cgroups.pods[p.UID] {
			n.t.Errorf("pod %s still has a cgroup", p.Name)
		}
		if _, err := os.Stat(filepath.Join(n.cfg.RootDir, "pods", string(p.UID))); !errors.Is(err, os.ErrNotExist) {
			n.t.Errorf("pod %s still has a directory: %v", p.Name, err)
		}
		if left, _ := filepath.Glob(filepath.Join(n.cfg.LogDir, "*_"+string(p.UID))); len(left) > 0 {
			n.t.Errorf("pod %s still has logs: %v", p.Name, left)
		}
	}
}

// is fails unless the agent says that of the pod.
func (n *testNode) is(name, want string) {
	n.t.Helper()
	if got := describe(n.pod(name)); got != want {
		n.t.Errorf("pod %s is\n\t%s\nnot\n\t%s", name, got, want)
	}
}

// describe is a status in one line: the phase, then each container with its restarts and its state.
func describe(p *corev1.Pod) string {
	out := []string{string(p.Status.Phase)}
	if p.Status.Reason != "" {
		out[0] += "(" + p.Status.Reason + ")"
	}
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses} {
		for _, s := range list {
			out = append(out, fmt.Sprintf("%s:%d:%s", s.Name, s.RestartCount, state(s.State)))
			if s.LastTerminationState.Terminated != nil {
				out[len(out)-1] += "<" + state(s.LastTerminationState)
			}
		}
	}
	return strings.Join(out, " ")
}

func state(s corev1.ContainerState) string {
	switch {
	case s.Running != nil:
		return "running"
	case s.Terminated != nil:
		return fmt.Sprintf("%s(%d)", s.Terminated.Reason, s.Terminated.ExitCode)
	case s.Waiting != nil:
		return s.Waiting.Reason
	}
	return "none"
}

// happened are the reasons of the events of a pod, in order.
func (n *testNode) happened(name string) string {
	var out []string
	for _, e := range n.events.List() {
		if e.InvolvedObject.Name == name {
			out = append(out, e.Reason)
		}
	}
	return strings.Join(out, " ")
}

func (n *testNode) message(name, reason string) string {
	for _, e := range n.events.List() {
		if e.InvolvedObject.Name == name && e.Reason == reason {
			return e.Message
		}
	}
	return ""
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
