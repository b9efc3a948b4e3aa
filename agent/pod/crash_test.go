package pod

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/podtest"
)

var errDead = errors.New("this process is dead")

// mortal is the runtime as an agent sees it that dies at its nth change of anything: that one still happens or not, and
// of all further ones none does.
type mortal struct {
	*fake
	mu    sync.Mutex
	left  int  // changes until death
	after bool // the last change happens
	dead  bool
}

// live says whether a change happens, and whether its caller hears of it.
func (m *mortal) live() (happens, heard bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return false, false
	}
	if m.left--; m.left >= 0 {
		return true, true
	}
	m.dead = true
	return m.after, false
}

func change[Q, A any](m *mortal, ctx context.Context, q Q, call func(context.Context, Q) (A, error)) (A, error) {
	happens, heard := m.live()
	var a A
	err := errDead
	if happens {
		a, err = call(ctx, q)
	}
	if !heard {
		var none A
		return none, errDead
	}
	return a, err
}

func (m *mortal) RunPodSandbox(ctx context.Context, q *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	return change(m, ctx, q, m.fake.RunPodSandbox)
}

func (m *mortal) StopPodSandbox(ctx context.Context, q *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	return change(m, ctx, q, m.fake.StopPodSandbox)
}

func (m *mortal) RemovePodSandbox(ctx context.Context, q *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	return change(m, ctx, q, m.fake.RemovePodSandbox)
}

func (m *mortal) CreateContainer(ctx context.Context, q *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	return change(m, ctx, q, m.fake.CreateContainer)
}

func (m *mortal) StartContainer(ctx context.Context, q *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	return change(m, ctx, q, m.fake.StartContainer)
}

func (m *mortal) StopContainer(ctx context.Context, q *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	return change(m, ctx, q, m.fake.StopContainer)
}

func (m *mortal) RemoveContainer(ctx context.Context, q *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	return change(m, ctx, q, m.fake.RemoveContainer)
}

// TestKilledAtEveryCall runs pods through a life with an agent that dies at each of its calls in turn, before and after
// it. The next agent always comes to the same.
func TestKilledAtEveryCall(t *testing.T) {
	for _, after := range []bool{false, true} {
		for left := 0; ; left++ {
			done := false
			t.Run(fmt.Sprintf("%d,%t", left, after), func(t *testing.T) {
				onNode(t, func(n *testNode) { done = liveWith(n, left, after) })
			})
			if done || t.Failed() {
				break
			}
			if left > 200 {
				t.Fatal("no end")
			}
		}
	}
}

// liveWith says whether the agent survived.
func liveWith(n *testNode, left int, after bool) bool {
	m := &mortal{fake: n.rt, left: left, after: after}
	n.stop()
	n.cfg.Runtime = m
	n.start()
	next := func() {
		n.pass(time.Minute)
		if !m.dead {
			return
		}
		n.stop()
		n.cfg.Runtime = n.rt
		n.start()
		n.pass(time.Minute)
	}
	job := podtest.New("job", podtest.Policy(corev1.RestartPolicyNever), podtest.Containers("once"))
	web := podtest.New("web", podtest.Inits("init", "side*"), podtest.Containers("a", "b"))
	n.apply(job, web)
	next()
	// The life of the containers goes on, whether there is an agent or not.
	n.rt.exit("init-0", 0)
	n.rt.exit("once-0", 0)
	next()
	n.is("job", "Succeeded once:0:Completed(0)")
	n.is("web", "Running init:0:Completed(0) side:0:running a:0:running b:0:running")
	n.rt.exit("a-0", 1)
	next()
	n.is("web", "Running init:0:Completed(0) side:0:running a:1:running<Error(1) b:0:running")
	second := podtest.New("web", podtest.WithUID("second"), podtest.Containers("new"))
	n.apply(second)
	next()
	n.gone(web)
	n.is("web", "Running new:0:running")
	n.remove(job, second)
	next()
	n.gone(job, web, second)
	if got := n.rt.running(); len(got) != 0 || len(n.rt.containers)+len(n.rt.sandboxes)+len(n.cgroups.pods) != 0 {
		n.t.Errorf("left: %v, %d containers, %d sandboxes, %d cgroups", got, len(n.rt.containers), len(n.rt.sandboxes), len(n.cgroups.pods))
	}
	for _, c := range []string{"init", "side", "b", "new", "once"} {
		if got := n.rt.called("StartContainer " + c + "-"); len(slices.Compact(got)) != 1 || !strings.HasSuffix(got[0], "-0") {
			n.t.Errorf("container %s was started as %v", c, got)
		}
	}
	return !m.dead
}
