package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/podtest"
	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/eviction/limit"
)

// TestEvictor has somebody who ends pods beside their workers be killed after he has told it, and before the worker
// has heard of it.
func TestEvictor(t *testing.T) {
	onNode(t, func(n *testNode) {
		p := podtest.New("web")
		n.rt.term["main"] = time.Second
		n.apply(p)
		n.pass(0)
		e := NewEvictor(n.m)
		if c := e.Candidates(); len(c) != 1 || c[0].Evicted != nil || c[0].Pod.Status.Phase != corev1.PodRunning {
			t.Fatalf("%+v", c)
		}
		why := NewEviction("The node was low on resource: memory. ", 5*time.Second)
		for range 2 { // told twice it is told once
			if err := e.Evict(p.UID, why); err != nil {
				t.Fatal(err)
			}
		}
		if c := e.Candidates(); len(c) != 1 || c[0].Evicted == nil || c[0].Evicted.Message != why.Message {
			t.Fatalf("what was told is not on record: %+v", c)
		}
		n.restart()
		e = NewEvictor(n.m)
		n.pass(0)
		if c := e.Candidates(); len(c) != 1 || c[0].Evicted == nil || c[0].Evicted.Message != why.Message {
			t.Fatalf("what an agent before has told is not known: %+v", c)
		}
		if ids, err := e.Running(context.Background(), p.UID); err != nil || len(ids) != 1 {
			t.Fatalf("%v run, %v", ids, err)
		}
		for what, wait := range map[string]func(context.Context, types.UID) error{"ended": e.Ended, "quiet": e.Quiet} {
			done := make(chan error, 1)
			go func() { done <- wait(context.Background(), p.UID) }()
			n.pass(0)
			select {
			case err := <-done:
				t.Fatalf("it runs still, and is %s: %v", what, err)
			default:
			}
			defer func() {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}()
		}
		n.pass(2 * time.Second)
		if ids, err := e.Running(context.Background(), p.UID); err != nil || len(ids) != 0 {
			t.Errorf("%v run, %v", ids, err)
		}
		n.is("web", "Failed(Evicted) main:0:Error(143)")
		if c := e.Candidates(); len(c) > 0 {
			t.Errorf("of those that have ended nothing is to be had: %+v", c)
		}
		if err := e.Evict("nobody", why); !errors.Is(err, errNoPod) {
			t.Errorf("nobody: %v", err)
		}
		if err := errors.Join(e.Ended(context.Background(), "nobody"), e.Quiet(context.Background(), "nobody")); err != nil {
			t.Errorf("nobody: %v", err)
		}
	})
}

// TestFilesBesideLayers has a container write to the files that the node makes for it: they count as its logs do, and
// /etc/hosts, which all have, as the pod's.
func TestFilesBesideLayers(t *testing.T) {
	onNode(t, func(n *testNode) {
		p := podtest.New("web")
		n.apply(p)
		n.pass(0)
		written := make([]byte, 1<<20)
		for _, path := range []string{
			spec.MessageFile(n.cfg.RootDir, string(p.UID), "main", 0), spec.HostsFile(n.cfg.RootDir, string(p.UID)),
		} {
			if err := os.WriteFile(path, written, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		e := NewEvictor(n.m)
		taken, err := e.Taken(context.Background(), []*corev1.Pod{p})
		if of := taken[p.UID]; err != nil || of.Logs["main"].Bytes < 1<<20 || of.Shared.Bytes < 1<<20 || of.Shared.Inodes != 1 {
			t.Errorf("for the node: %+v, %v", of, err)
		}
		use, _, err := e.Containers(t.Context(), p)
		if err != nil || use["main"] < 1<<20 || use[limit.Shared] < 1<<20 {
			t.Errorf("for a limit: %v, %v", use, err)
		}
	})
}

// TestEvictedForDisk has a pod end for its files: what its containers have written goes too, and what became of
// them stays known.
func TestEvictedForDisk(t *testing.T) {
	onNode(t, func(n *testNode) {
		p := podtest.New("web")
		n.apply(p)
		n.pass(0)
		why := NewEviction("for a test", time.Second)
		why.Condition = corev1.NodeDiskPressure
		if err := NewEvictor(n.m).Evict(p.UID, why); err != nil {
			t.Fatal(err)
		}
		n.pass(2 * time.Second)
		n.is("web", "Failed(Evicted) main:0:Error(143)")
		if len(n.rt.containers) > 0 {
			t.Errorf("its container is there still: %v", n.rt.called(""))
		}
		n.restart()
		n.pass(0)
		n.is("web", "Failed(Evicted) main:0:ContainerStatusUnknown(137)")
	})
}

// TestReturnsWhenEased has an evicted pod wait for the end of the condition that it went for, whatever its back-off is.
func TestReturnsWhenEased(t *testing.T) {
	onNode(t, func(n *testNode) {
		var holding []corev1.NodeConditionType
		n.stop()
		n.cfg.Node.Short.Holding = func() []corev1.NodeConditionType { return slices.Clone(holding) }
		n.start()
		p := podtest.New("web")
		n.apply(p)
		n.pass(0)
		why := NewEviction("for a test", time.Second)
		why.Condition = corev1.NodeMemoryPressure
		holding = []corev1.NodeConditionType{corev1.NodeMemoryPressure}
		if err := NewEvictor(n.m).Evict(p.UID, why); err != nil {
			t.Fatal(err)
		}
		n.apply(podtest.New("new"))
		n.pass(time.Hour)
		if got := n.pod("web").Status.Phase; got != corev1.PodFailed {
			t.Errorf("it runs again while the node is short: %s", got)
		}
		if got := n.pod("new").Status; got.Phase != corev1.PodPending || got.Reason != "Evicted" || got.Message != "The node had condition: [MemoryPressure]. " {
			t.Errorf("a new one: %+v", got)
		}
		holding = nil
		NewEvictor(n.m).Again()
		n.pass(time.Minute)
		n.is("web", "Running main:0:running")
		n.is("new", "Running main:0:running")
	})
}

// TestTakenInTime has pods whose files are more than can be counted: one of which the runtime says what it could count,
// and one of which it says nothing. All others are counted nevertheless.
func TestTakenInTime(t *testing.T) {
	onNode(t, func(n *testNode) {
		var pods []*corev1.Pod
		for _, name := range []string{"bomb", "part", "web", "db"} {
			p := podtest.New(name)
			n.apply(p)
			pods = append(pods, p)
		}
		n.pass(0)
		n.rt.counted = func(ctx context.Context, uid string) (int, error) {
			switch uid {
			case string(pods[0].UID):
				<-ctx.Done()
				return 0, ctx.Err()
			case string(pods[1].UID):
				<-ctx.Done()
				return 7_000_000, nil
			}
			return 5, nil
		}
		e := NewEvictor(n.m)
		taken, err := e.Taken(context.Background(), pods)
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []int64{0, 7_000_000, 5, 5} {
			of, ok := taken[pods[i].UID]
			if got := of.Layers["main"].Inodes; got != want || ok != (i > 0) {
				t.Errorf("%s has %d inodes (%v), want %d", pods[i].Name, got, ok, want)
			}
		}
		n.rt.counted = func(context.Context, string) (int, error) { return 0, errors.New("away") }
		if taken, err := e.Taken(context.Background(), pods); err == nil {
			t.Errorf("nothing is known, and it says %+v", taken)
		}
	})
}

// TestTakenOfBombs has many more pods than are counted at once whose files are more than can be counted. They hide
// nobody: all others are counted to their end, and of each bomb it is known that it has more than they have.
func TestTakenOfBombs(t *testing.T) {
	for _, seconds := range []time.Duration{0, 3} { // 0: there is time enough
		onNode(t, func(n *testNode) {
			var pods []*corev1.Pod
			for i := range 60 {
				p := podtest.New(fmt.Sprintf("pod%02d", i))
				n.apply(p)
				pods = append(pods, p)
			}
			n.pass(0)
			quiet := pods[50:]
			n.rt.counted = func(ctx context.Context, uid string) (int, error) {
				if slices.ContainsFunc(quiet, func(p *corev1.Pod) bool { return string(p.UID) == uid }) {
					return 5, nil
				}
				began := time.Now()
				<-ctx.Done()
				return int(time.Since(began).Milliseconds()) * 100, nil
			}
			ctx := context.Background()
			if seconds > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, seconds*time.Second)
				defer cancel()
			}
			began := time.Now()
			taken, err := NewEvictor(n.m).Taken(ctx, pods)
			if took := time.Since(began); err != nil || took > takenPatience || seconds > 0 && took >= seconds*time.Second {
				t.Fatalf("after %v: %v", took, err)
			}
			for i, p := range pods {
				of, ok := taken[p.UID]
				got := of.Layers["main"].Inodes
				if !ok || of.AtLeast != (i < 50) || i < 50 && got < 1000 || i >= 50 && got != 5 {
					t.Errorf("%s: %+v, %v", p.Name, of, ok)
				}
			}
		})
	}
}

// TestFilesOutOfTime: what was counted until there was no time left counts.
func TestFilesOutOfTime(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, ok := files(ctx, dir); !ok || got.Inodes == 0 {
		t.Errorf("%+v, %v", got, ok)
	}
	if got, ok := files(ctx, dir+"/none"); ok {
		t.Errorf("of nothing: %+v", got)
	}
}

// ListContainerStats tells of containers that have written nothing to their file systems, or what it is to count.
func (f *fake) ListContainerStats(
	ctx context.Context, r *runtimeapi.ListContainerStatsRequest,
) (*runtimeapi.ListContainerStatsResponse, error) {
	if f.counted != nil {
		uid := r.GetFilter().GetLabelSelector()[spec.PodUIDLabel]
		inodes, err := f.counted(ctx, uid)
		return &runtimeapi.ListContainerStatsResponse{Stats: []*runtimeapi.ContainerStats{{
			Attributes: &runtimeapi.ContainerAttributes{
				Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Labels: map[string]string{spec.PodUIDLabel: uid},
			},
			WritableLayer: &runtimeapi.FilesystemUsage{InodesUsed: &runtimeapi.UInt64Value{Value: uint64(inodes)}},
		}}}, err
	}
	list, err := f.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	out := &runtimeapi.ListContainerStatsResponse{}
	for _, c := range list.GetContainers() {
		out.Stats = append(out.Stats, &runtimeapi.ContainerStats{
			Attributes: &runtimeapi.ContainerAttributes{Id: c.GetId(), Metadata: c.GetMetadata(), Labels: c.GetLabels()},
		})
	}
	return out, err
}
