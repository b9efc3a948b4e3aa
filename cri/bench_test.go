package cri

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// BenchmarkPod takes a pod through its life, again and again, and tells the median of each call.
func BenchmarkPod(b *testing.B) {
	n := newNode(b)
	times := map[string][]time.Duration{}
	timed := func(name string, f func() error) {
		start := time.Now()
		if err := f(); err != nil {
			b.Fatal(err)
		}
		times[name] = append(times[name], time.Since(start))
	}
	steps := newStopwatch()
	n.core.host.Steps.At = steps.point
	ctx := context.Background()
	own0, groups0 := n.cpuTime(b)
	for i := 0; b.Loop(); i++ {
		var pod, id string
		cfg := podConfig("bench")
		cfg.Linux.CgroupParent = n.cfg.CgroupRoot + "/bench"
		cfg.Linux.SecurityContext = &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}}
		cfg.LogDirectory = n.cfg.LogDir + "/bench"
		// A pod that comes alone: the kernel has gone quiet since the last one.
		time.Sleep(100 * time.Millisecond)
		whole := time.Now()
		timed("run", func() error {
			r, err := n.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: cfg})
			pod = r.GetPodSandboxId()
			return err
		})
		timed("create", func() error {
			c := containerConfig("main")
			c.Image.Image, c.Command, c.LogPath = boxImage, []string{"sleep", "1000"}, "main/0.log"
			c.Linux.SecurityContext.Seccomp = &runtimeapi.SecurityProfile{}
			r, err := n.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: c})
			id = r.GetContainerId()
			return err
		})
		timed("start", func() error {
			_, err := n.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
			return err
		})
		times["all three"] = append(times["all three"], time.Since(whole))
		timed("exec", func() error {
			_, err := n.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"true"}})
			return err
		})
		timed("podstatus", func() error {
			_, err := n.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod})
			return err
		})
		timed("stop", func() error {
			_, err := n.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id})
			return err
		})
		timed("remove", func() error {
			_, err := n.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})
			return err
		})
		timed("stoppod", func() error {
			_, err := n.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod})
			return err
		})
		timed("removepod", func() error {
			_, err := n.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod})
			return err
		})
	}
	b.ReportMetric(0, "ns/op")
	own, groups := n.cpuTime(b)
	pods := float64(len(times["run"]))
	b.ReportMetric((own-own0).Seconds()*1000/pods, "cpu-ms/pod-server")
	b.ReportMetric((groups-groups0).Seconds()*1000/pods, "cpu-ms/pod-processes")
	for name, t := range times {
		slices.Sort(t)
		b.ReportMetric(float64(t[len(t)/2].Microseconds())/1000, name2unit(name))
	}
	steps.log(b)
}

// cpuTime is what this process, and what the processes of its pods and of their starts have used.
func (n *node) cpuTime(b *testing.B) (own, groups time.Duration) {
	b.Helper()
	var ru unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &ru); err != nil {
		b.Fatal(err)
	}
	u, err := n.core.host.Cgroups.Stat(n.cfg.CgroupRoot)
	if err != nil {
		b.Fatal(err)
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano()), time.Duration(u.CPU.UsageNs)
}

// stopwatch takes the time of every step.
type stopwatch struct {
	mu    sync.Mutex
	begun map[string]time.Time
	took  map[string][]time.Duration
}

func newStopwatch() *stopwatch {
	return &stopwatch{begun: map[string]time.Time{}, took: map[string][]time.Duration{}}
}

func (s *stopwatch) point(p string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name, ok := strings.CutSuffix(p, "/before"); ok {
		s.begun[name] = time.Now()
	} else if name, ok := strings.CutSuffix(p, "/after"); ok {
		s.took[name] = append(s.took[name], time.Since(s.begun[name]))
	}
}

func (s *stopwatch) log(b *testing.B) {
	for _, name := range slices.Sorted(maps.Keys(s.took)) {
		t := s.took[name]
		slices.Sort(t)
		b.Logf("%-40s %8.3f ms", name, float64(t[len(t)/2].Microseconds())/1000)
	}
}

func name2unit(s string) string {
	b := []byte("ms/" + s)
	for i, c := range b {
		if c == ' ' {
			b[i] = '-'
		}
	}
	return string(b)
}

// BenchmarkHundredPods runs a hundred pods at once, and removes them at once.
func BenchmarkHundredPods(b *testing.B) {
	n := newNode(b)
	ctx := context.Background()
	var up, down []time.Duration
	own0, groups0 := n.cpuTime(b)
	for b.Loop() {
		const pods = 100
		ids := make([]string, pods)
		all := func(f func(i int) error) time.Duration {
			start := time.Now()
			errs := make(chan error)
			for i := range pods {
				go func() { errs <- f(i) }()
			}
			for range pods {
				if err := <-errs; err != nil {
					b.Error(err)
				}
			}
			return time.Since(start)
		}
		up = append(up, all(func(i int) error {
			cfg := podConfig("p" + itoa(i))
			cfg.Linux.CgroupParent = n.cfg.CgroupRoot + "/p" + itoa(i)
			cfg.Linux.SecurityContext = &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}}
			cfg.LogDirectory = n.cfg.LogDir + "/" + itoa(i)
			r, err := n.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: cfg})
			if err != nil {
				return err
			}
			ids[i] = r.PodSandboxId
			_, err = n.tryRun(ids[i], "main", nil, "sleep", "1000")
			return err
		}))
		down = append(down, all(func(i int) error {
			_, err := n.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: ids[i]})
			return err
		}))
	}
	b.ReportMetric(0, "ns/op")
	own, groups := n.cpuTime(b)
	b.ReportMetric((own-own0).Seconds()*10/float64(len(up)), "cpu-ms/pod-server")
	b.ReportMetric((groups-groups0).Seconds()*10/float64(len(up)), "cpu-ms/pod-processes")
	slices.Sort(up)
	slices.Sort(down)
	b.ReportMetric(up[len(up)/2].Seconds()*1000, "ms/100-up")
	b.ReportMetric(down[len(down)/2].Seconds()*1000, "ms/100-down")
}

// BenchmarkTakeover opens a Server on fifty pods that run.
func BenchmarkTakeover(b *testing.B) {
	n := newNode(b)
	for i := range 50 {
		pod, _ := n.pod(b, "p"+itoa(i), nil)
		n.run(b, pod, "main", nil, "sleep", "1000")
	}
	for b.Loop() {
		b.StopTimer()
		if err := n.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		n.open(b)
	}
	if l := n.core.ctrs.Table.List(&runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}}); len(l) != 50 {
		b.Errorf("%d containers run", len(l))
	}
}
