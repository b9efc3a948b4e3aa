package pod

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/pod/plan"
	"github.com/berth-node/berth/agent/pod/podtest"
	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/eviction/collect"
)

// deadNow are the IDs of the containers that have ended and are still there.
func (n *testNode) deadNow() string {
	n.rt.mu.Lock()
	defer n.rt.mu.Unlock()
	var out []string
	for id, c := range n.rt.containers {
		if c.GetState() == plan.Exited {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// restarting is a pod whose container has ended so many times, a minute apart.
func (n *testNode) restarting(name string, times int) *corev1.Pod {
	p := podtest.New(name)
	p.Spec.Containers[0].Name = name
	n.apply(p)
	n.pass(time.Second)
	for i := range times {
		n.rt.exit(fmt.Sprintf("%s-%d", name, i), 1)
		n.pass(10 * time.Minute)
	}
	return p
}

// TestDeadKept: how many containers stay that have ended is what the policy says, of all pods together, and none goes
// that is too young. The one that tells how its pod is stays in any case.
func TestDeadKept(t *testing.T) {
	for name, c := range map[string]struct {
		policy *collect.Policy
		want   string
	}{
		"kubelet's":  {nil, "a-2 b-2"},
		"none":       {&collect.Policy{MaxTotal: -1}, ""},
		"any number": {&collect.Policy{MaxPerContainer: -1, MaxTotal: -1}, "a-0 a-1 a-2 b-0 b-1 b-2"},
		// As many of each, before any container has more than the others.
		"in all": {&collect.Policy{MaxPerContainer: -1, MaxTotal: 3}, "a-2 b-2"},
		"young":  {&collect.Policy{MinAge: 15 * time.Minute, MaxTotal: -1}, "b-2"},
	} {
		t.Run(name, func(t *testing.T) {
			onNode(t, func(n *testNode) {
				n.stop()
				n.cfg.Node.Dead, n.cfg.Backoff = c.policy, plan.Delays{Initial: 0, Max: time.Second, Reset: time.Minute}
				n.start()
				n.restarting("a", 3)
				n.restarting("b", 3)
				if got := n.deadNow(); got != c.want {
					t.Errorf("there are %q, want %q", got, c.want)
				}
				n.pass(time.Hour)
				if name == "young" && n.deadNow() != "" {
					t.Errorf("there are %q when all are old", n.deadNow())
				}
			})
		})
	}
}

// weighed is how many bytes the logs of the oldest dead container take.
func weighed(n *testNode, prune *Pruner) int64 {
	n.t.Helper()
	dead, err := prune.WeighDead(n.t.Context())
	if err != nil || len(dead) == 0 || dead[0].Logs.Inodes != 1 || dead[0].LogsDir == "" {
		n.t.Fatalf("%+v, %v", dead, err)
	}
	return dead[0].Logs.Bytes
}

// TestRemoveDead by hand: with their logs, and none that tells how its pod is.
func TestRemoveDead(t *testing.T) {
	onNode(t, func(n *testNode) {
		p := n.restarting("a", 2)
		over := podtest.New("b", podtest.Policy(corev1.RestartPolicyNever))
		over.Spec.Containers[0].Name = "b"
		n.apply(over)
		n.pass(time.Second)
		n.rt.exit("b-0", 0)
		n.pass(time.Minute)
		log := filepath.Join(spec.LogDirectory(n.cfg.LogDir, p), spec.LogPath("a", 1))
		if err := os.WriteFile(log, []byte("words"), 0o600); err != nil {
			t.Fatal(err)
		}
		prune := NewPruner(n.m)
		list := prune.Dead()
		if len(list) != 1 || list[0].ID != "a-1" || weighed(n, prune) <= 0 {
			t.Fatalf("dead: %+v", list)
		}
		if gone := prune.RemoveDead(n.t.Context(), list); len(gone) != 1 || n.deadNow() != "b-0" {
			t.Errorf("removed %+v, there are %q", gone, n.deadNow())
		}
		n.pass(time.Second)
		if _, err := os.Stat(log); err == nil {
			t.Error("the log is still there")
		}
	})
}

// TestWeighDeadInTime: dead containers that have more files than can be counted keep none of the others from being
// weighed, and have what could be counted.
func TestWeighDeadInTime(t *testing.T) {
	onNode(t, func(n *testNode) {
		n.stop()
		n.cfg.Node.Dead = &collect.Policy{MaxPerContainer: -1, MaxTotal: -1}
		n.cfg.Backoff = plan.Delays{Initial: 0, Max: time.Second, Reset: time.Minute}
		n.start()
		n.restarting("bomb", 8)
		n.restarting("web", 3)
		n.rt.counted = func(ctx context.Context, id string) (int, error) {
			if strings.HasPrefix(id, "bomb") {
				<-ctx.Done()
				return 1000, nil
			}
			return 5, nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		dead, err := NewPruner(n.m).WeighDead(ctx)
		if err != nil || len(dead) < 9 {
			t.Fatalf("%+v, %v", dead, err)
		}
		for _, c := range dead {
			if want := map[string]int64{"bomb": 1000, "web": 5}[c.Name]; c.Layer.Inodes != want {
				t.Errorf("%s: %+v", c.ID, c.Layer)
			}
		}
		cancel()
		if _, err := NewPruner(n.m).WeighDead(ctx); err == nil {
			t.Error("nobody wants to know any more, and is told")
		}
	})
}
