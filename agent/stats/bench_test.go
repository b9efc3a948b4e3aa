package stats

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cgroups"
)

// BenchmarkMeasure100 is the CPU time of one measurement of a node with a hundred pods that sleep.
func BenchmarkMeasure100(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root: makes control groups")
	}
	h, err := cgroups.Open("")
	if err != nil {
		b.Skipf("needs a cgroup hierarchy: %v", err)
	}
	root := fmt.Sprintf("/berth-test-%d", os.Getpid())
	b.Cleanup(func() {
		if err := h.Remove(context.Background(), root); err != nil {
			b.Error(err)
		}
	})
	var pods []*corev1.Pod
	for i := range 100 {
		uid := fmt.Sprintf("uid%d", i)
		id := fmt.Sprintf("%064d", i)
		if err := h.Create(root+"/"+uid+"/"+id, nil); err != nil {
			b.Fatal(err)
		}
		cmd := exec.Command("sh", "-c", "for f in \"$@\"; do echo $$ > $f; done; echo in; exec sleep 1000", "sh")
		cmd.Args = append(cmd.Args, h.ProcsFiles(root+"/"+uid+"/"+id)...)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			b.Fatal(err)
		}
		pods = append(pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: uid, UID: types.UID(uid)},
			Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
				Name: "c", ContainerID: "x://" + id, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
			}}},
		})
	}
	c := New(Config{
		Pods: func() []*corev1.Pod { return pods }, Groups: h, PodPath: func(p *corev1.Pod) string { return root + "/" + string(p.UID) },
		Classes: []string{root}, Runtime: noRuntime{}, Memory: 1 << 30,
	})
	defer c.Close()
	c.measure(b.Context(), false)
	var before, after unix.Rusage
	b.ReportAllocs()
	if err := unix.Getrusage(unix.RUSAGE_SELF, &before); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		c.measure(b.Context(), false)
	}
	if err := unix.Getrusage(unix.RUSAGE_SELF, &after); err != nil {
		b.Fatal(err)
	}
	cpu := time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
	b.ReportMetric(float64(cpu.Microseconds())/float64(b.N), "cpu-µs/op")
}

// noRuntime knows nothing.
type noRuntime struct{}

func (noRuntime) ListContainerStats(context.Context, *runtimeapi.ListContainerStatsRequest) (*runtimeapi.ListContainerStatsResponse, error) {
	return &runtimeapi.ListContainerStatsResponse{}, nil
}

func (noRuntime) ListPodSandboxStats(context.Context, *runtimeapi.ListPodSandboxStatsRequest) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	return &runtimeapi.ListPodSandboxStatsResponse{}, nil
}

func (noRuntime) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	return &runtimeapi.ImageFsInfoResponse{}, nil
}
