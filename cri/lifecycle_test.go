package cri

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/host"
	"github.com/berth-node/berth/cri/keeper"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

var errTest = errors.New("it broke")

func stopPod(t *testing.T, s *Server, id string) error {
	_, err := s.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
	return err
}

func removePod(t *testing.T, s *Server, id string) error {
	_, err := s.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
	return err
}

func podState(t *testing.T, s *Server, id string) runtimeapi.PodSandboxState {
	t.Helper()
	r, err := s.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
	if err != nil {
		t.Fatal(err)
	}
	return r.Status.State
}

func TestSandboxLife(t *testing.T) {
	w := newWorld()
	s := closing(t, fakeServer(t, w, t.TempDir()))
	id := runPod(t, s, "a")
	r, err := s.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
	if err != nil || r.Status.Network.Ip != "10.0.0.2" || r.Status.State != runtimeapi.PodSandboxState_SANDBOX_READY || r.Info["info"] == "" {
		t.Fatalf("got %v, %v", r, err)
	}
	if _, err := s.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: podConfig("a")}); status.Code(err) != codes.AlreadyExists {
		t.Errorf("the same pod again: got %v", err)
	}
	for range 2 {
		if err := stopPod(t, s, id); err != nil {
			t.Fatal(err)
		}
		if got := podState(t, s, id); got != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
			t.Errorf("stopped: got %v", got)
		}
		if l := w.left(); len(l) > 0 {
			t.Errorf("a stopped sandbox has %q", l)
		}
	}
	for range 2 {
		if err := removePod(t, s, id); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id}); status.Code(err) != codes.NotFound {
		t.Errorf("removed: got %v", err)
	}
	runPod(t, s, "a") // the name is free again
}

func TestSandboxUndoesWhatFails(t *testing.T) {
	for _, what := range []string{"make netns", "make cgroup", "make network", "make keeper"} {
		t.Run(what, func(t *testing.T) {
			w := newWorld()
			s := closing(t, fakeServer(t, w, t.TempDir()))
			w.failing(what, errTest)
			if _, err := s.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: podConfig("a")}); err == nil || !strings.Contains(err.Error(), "it broke") {
				t.Fatalf("got %v", err)
			}
			if l := w.left(); len(l) > 0 {
				t.Errorf("left: %q", l)
			}
			if l := s.core.pods.Table.List(nil); len(l) > 0 {
				t.Errorf("listed: %v", l)
			}
			w.failing(what, nil)
			runPod(t, s, "a")
		})
	}
}

func TestSandboxThatCannotBeUndoneStaysForStop(t *testing.T) {
	w := newWorld()
	s := closing(t, fakeServer(t, w, t.TempDir()))
	w.failing("make network", errTest)
	w.failing("remove cgroup", errTest)
	if _, err := s.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: podConfig("a")}); err == nil {
		t.Fatal("no error")
	}
	l := s.core.pods.Table.List(nil)
	if len(l) != 1 || l[0].State != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
		t.Fatalf("got %v", l)
	}
	if err := removePod(t, s, l[0].Id); err == nil {
		t.Error("removed with its cgroup left")
	}
	w.failing("remove cgroup", nil)
	if err := removePod(t, s, l[0].Id); err != nil {
		t.Error(err)
	}
	if l := w.left(); len(l) > 0 {
		t.Errorf("left: %q", l)
	}
}

func TestContainerLife(t *testing.T) {
	w := newWorld()
	s := closing(t, fakeServer(t, w, t.TempDir()))
	pod := runPod(t, s, "a")
	id := createContainer(t, s, pod, "c")
	if st := statusOf(t, s, id); st.State != runtimeapi.ContainerState_CONTAINER_CREATED || st.ImageId != "sha256:1" || st.ImageRef != "img@sha256:2" || st.Image.Image != "img:1" {
		t.Errorf("created: got %v", st)
	}
	startContainer(t, s, id)
	if st := statusOf(t, s, id); st.State != runtimeapi.ContainerState_CONTAINER_RUNNING || st.StartedAt == 0 {
		t.Errorf("running: got %v", st)
	}
	if _, err := s.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("second start: got %v", err)
	}
	w.keeper(pod).exit(keeper.Exit{ContainerID: id, Code: 3})
	st := waitExited(t, s, id)
	if st.ExitCode != 3 || st.Reason != "Error" || st.FinishedAt == 0 || st.State != runtimeapi.ContainerState_CONTAINER_EXITED {
		t.Errorf("exited: got %v", st)
	}
	if l := w.left(); hasPrefix(l, "mount "+s.core.host.Paths.Container(id).Rootfs()) {
		t.Errorf("an exited container has %q", l)
	}
	for range 2 {
		if _, err := s.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
			t.Fatal(err)
		}
	}
	if l := w.left(); hasPrefix(l, "snapshot") {
		t.Errorf("a removed container has %q", l)
	}
	if _, err := s.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id}); err != nil {
		t.Errorf("stop of a removed container: %v", err)
	}
}

func TestExitBeforeStartHasReturned(t *testing.T) {
	w := newWorld()
	s := closing(t, fakeServer(t, w, t.TempDir()))
	pod := runPod(t, s, "a")
	k := w.keeper(pod)
	k.early = func(id string) { k.exit(keeper.Exit{ContainerID: id, Code: 0}) }
	id := createContainer(t, s, pod, "c")
	startContainer(t, s, id)
	if st := waitExited(t, s, id); st.Reason != "Completed" || st.StartedAt == 0 {
		t.Errorf("got %v", st)
	}
}

func TestStartError(t *testing.T) {
	w := newWorld()
	s := closing(t, fakeServer(t, w, t.TempDir()))
	pod := runPod(t, s, "a")
	w.keeper(pod).runErr = errors.New(`exec: "x": executable file not found in $PATH`)
	id := createContainer(t, s, pod, "c")
	_, err := s.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id})
	if err == nil || !strings.Contains(err.Error(), `exec: "x": executable file not found in $PATH`) {
		t.Fatalf("got %v", err)
	}
	st := statusOf(t, s, id)
	if st.State != runtimeapi.ContainerState_CONTAINER_EXITED || st.ExitCode != 128 || st.Reason != "StartError" || !strings.Contains(st.Message, "not found in $PATH") {
		t.Errorf("got %v", st)
	}
	if l := w.left(); hasPrefix(l, "mount "+s.core.host.Paths.Container(id).Rootfs()) {
		t.Errorf("left: %q", l)
	}
}

func TestCreateUndoesWhatFails(t *testing.T) {
	for _, what := range []string{"make snapshot", "make mount"} {
		w := newWorld()
		s := closing(t, fakeServer(t, w, t.TempDir()))
		pod := runPod(t, s, "a")
		before := slices.Sorted(slices.Values(w.left()))
		w.failing(what, errTest)
		req := &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: containerConfig("c")}
		if _, err := s.CreateContainer(t.Context(), req); err == nil {
			t.Fatalf("%s: no error", what)
		}
		if l := slices.Sorted(slices.Values(w.left())); !slices.Equal(l, before) {
			t.Errorf("%s: left: %q, and were before: %q", what, l, before)
		}
		w.failing(what, nil)
		if _, err := s.CreateContainer(t.Context(), req); err != nil {
			t.Errorf("%s: again: %v", what, err)
		}
	}
}

func TestErrorCodes(t *testing.T) {
	s := closing(t, fakeServer(t, newWorld(), t.TempDir()))
	pod := runPod(t, s, "a")
	ctx := t.Context()
	check := func(name string, err error, want codes.Code) {
		if status.Code(err) != want {
			t.Errorf("%s: got %v, want %v", name, err, want)
		}
	}
	_, err := s.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: "nope", Config: containerConfig("c")})
	check("create in nothing", err, codes.NotFound)
	cfg := containerConfig("c")
	cfg.Image.Image = "missing"
	_, err = s.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: cfg})
	check("create from nothing", err, codes.NotFound)
	_, err = s.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: "nope"})
	check("start nothing", err, codes.NotFound)
	_, err = s.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: "nope"})
	check("status of nothing", err, codes.NotFound)
	_, err = s.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: "nope", Cmd: []string{"x"}})
	check("exec in nothing", err, codes.NotFound)
	_, err = s.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{})
	check("run nothing", err, codes.InvalidArgument)
	_, err = s.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: podConfig("b"), RuntimeHandler: "kata"})
	check("unknown handler", err, codes.InvalidArgument)
	id := createContainer(t, s, pod, "c")
	_, err = s.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"x"}})
	check("exec in what does not run", err, codes.FailedPrecondition)
	if got, err := s.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id[:12]}); err != nil || got.Status.Id != id {
		t.Errorf("by prefix: got %v, %v", got, err)
	}
	if err := stopPod(t, s, pod); err != nil {
		t.Fatal(err)
	}
	_, err = s.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
	check("start in a stopped sandbox", err, codes.FailedPrecondition)
	_, err = s.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: containerConfig("d")})
	check("create in a stopped sandbox", err, codes.FailedPrecondition)
}

// stopWith starts a container that ignores everything but SIGKILL and stops it with these graces, one after the other
// begun.
func stopWith(t *testing.T, graces ...int64) (took time.Duration, sent []unix.Signal) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		s := fakeServer(t, w, dir)
		defer s.Close()
		pod := runPod(t, s, "a")
		k := w.keeper(pod)
		k.stubborn = true
		id := createContainer(t, s, pod, "c")
		startContainer(t, s, id)
		begin := time.Now()
		var wg sync.WaitGroup
		for _, g := range graces {
			wg.Go(func() {
				if _, err := s.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: g}); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		took, sent = time.Since(begin), k.sent()
		if st := statusOf(t, s, id); st.ExitCode != 137 {
			t.Errorf("got %v", st)
		}
	})
	return took, sent
}

func TestStopKillsAfterGrace(t *testing.T) {
	took, sent := stopWith(t, 30)
	if took != 30*time.Second || !slices.Equal(sent, []unix.Signal{unix.SIGTERM, unix.SIGKILL}) {
		t.Errorf("took %v, sent %v", took, sent)
	}
	took, sent = stopWith(t, 0)
	if took != 0 || !slices.Equal(sent, []unix.Signal{unix.SIGKILL}) {
		t.Errorf("without grace: took %v, sent %v", took, sent)
	}
}

func TestShortestGraceCounts(t *testing.T) {
	took, sent := stopWith(t, 600, 5, 60)
	if took != 5*time.Second || !slices.Equal(sent, []unix.Signal{unix.SIGTERM, unix.SIGKILL}) {
		t.Errorf("took %v, sent %v", took, sent)
	}
}

func TestStopSignal(t *testing.T) {
	w := newWorld()
	w.image.Config.Config.StopSignal = "SIGQUIT"
	s := closing(t, fakeServer(t, w, t.TempDir()))
	pod := runPod(t, s, "a")
	id := createContainer(t, s, pod, "c")
	startContainer(t, s, id)
	if _, err := s.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 30}); err != nil {
		t.Fatal(err)
	}
	if st := statusOf(t, s, id); st.ExitCode != 128+int32(unix.SIGQUIT) || st.StopSignal != runtimeapi.Signal_SIGNAL_SIGQUIT {
		t.Errorf("got %v", st)
	}
}

// A stop of the container, which has seen it run, finds the keeper taken down by a stop of the sandbox.
func TestStopsMeet(t *testing.T) {
	w := newWorld()
	s := closing(t, fakeServer(t, w, t.TempDir()))
	pod := runPod(t, s, "a")
	id := createContainer(t, s, pod, "c")
	startContainer(t, s, id)
	w.keeper(pod).tooLate = func() {
		if err := stopPod(t, s, pod); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id}); err != nil {
		t.Error(err)
	}
	if err := removePod(t, s, pod); err != nil {
		t.Error(err)
	}
}

func TestStopSandboxKillsContainers(t *testing.T) {
	w := newWorld()
	s := closing(t, fakeServer(t, w, t.TempDir()))
	pod := runPod(t, s, "a")
	w.keeper(pod).stubborn = true
	var ids []string
	for _, n := range []string{"c", "d"} {
		id := createContainer(t, s, pod, n)
		startContainer(t, s, id)
		ids = append(ids, id)
	}
	if err := stopPod(t, s, pod); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if st := statusOf(t, s, id); st.State != runtimeapi.ContainerState_CONTAINER_EXITED || st.ExitCode != 137 {
			t.Errorf("got %v", st)
		}
	}
	if err := removePod(t, s, pod); err != nil {
		t.Fatal(err)
	}
	if l := w.left(); len(l) > 0 {
		t.Errorf("left: %q", l)
	}
	if l := s.core.ctrs.Table.List(nil); len(l) > 0 {
		t.Errorf("listed: %v", l)
	}
}

func TestLostKeeperEndsItsPod(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		s := fakeServer(t, w, dir)
		defer s.Close()
		pod := runPod(t, s, "a")
		id := createContainer(t, s, pod, "c")
		startContainer(t, s, id)
		w.keeper(pod).die()
		synctest.Wait()
		if st := statusOf(t, s, id); st.State != runtimeapi.ContainerState_CONTAINER_EXITED || st.ExitCode != 255 || st.Reason != "Unknown" {
			t.Errorf("got %v", st)
		}
		if got := podState(t, s, pod); got != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
			t.Errorf("got %v", got)
		}
		if err := removePod(t, s, pod); err != nil {
			t.Fatal(err)
		}
		if l := w.left(); len(l) > 0 {
			t.Errorf("left: %q", l)
		}
	})
}

// A keeper that ends while its pod is being stopped takes along who would have told of the containers' ends.
func TestKeeperLostWhileItsPodIsStopped(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		s := fakeServer(t, w, dir)
		defer s.Close()
		pod := runPod(t, s, "a")
		startContainer(t, s, createContainer(t, s, pod, "c"))
		w.keeper(pod).deaf = true
		began := time.Now()
		removed := make(chan error)
		go func() { removed <- removePod(t, s, pod) }()
		synctest.Wait()
		w.keeper(pod).die()
		if err := <-removed; err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 0 { // the clock of the test stands still while anybody can go on
			t.Errorf("took %v", took)
		}
		if l := w.left(); len(l) > 0 {
			t.Errorf("left: %q", l)
		}
	})
}

func TestFilters(t *testing.T) {
	s := closing(t, fakeServer(t, newWorld(), t.TempDir()))
	a, b := runPod(t, s, "a"), runPod(t, s, "b")
	ca, cb := createContainer(t, s, a, "c"), createContainer(t, s, b, "c")
	startContainer(t, s, cb)
	pods := func(f *runtimeapi.PodSandboxFilter) (out []string) {
		for _, p := range s.core.pods.Table.List(f) {
			out = append(out, p.Id)
		}
		return out
	}
	ctrs := func(f *runtimeapi.ContainerFilter) (out []string) {
		for _, c := range s.core.ctrs.Table.List(f) {
			out = append(out, c.Id)
		}
		return out
	}
	for name, ok := range map[string]bool{
		"all, newest first": slices.Equal(pods(nil), []string{b, a}),
		"by id":             slices.Equal(pods(&runtimeapi.PodSandboxFilter{Id: a}), []string{a}),
		"by label":          slices.Equal(pods(&runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{"app": "b"}}), []string{b}),
		"by state": pods(&runtimeapi.PodSandboxFilter{State: &runtimeapi.PodSandboxStateValue{
			State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY,
		}}) == nil,
		"unknown id":         pods(&runtimeapi.PodSandboxFilter{Id: "nope"}) == nil,
		"all containers":     slices.Equal(ctrs(nil), []string{cb, ca}),
		"containers of a":    slices.Equal(ctrs(&runtimeapi.ContainerFilter{PodSandboxId: a}), []string{ca}),
		"containers by id":   slices.Equal(ctrs(&runtimeapi.ContainerFilter{Id: ca}), []string{ca}),
		"both that conflict": ctrs(&runtimeapi.ContainerFilter{Id: ca, PodSandboxId: b}) == nil,
		"running": slices.Equal(ctrs(&runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{
			State: runtimeapi.ContainerState_CONTAINER_RUNNING,
		}}), []string{cb}),
	} {
		if !ok {
			t.Error(name)
		}
	}
}

func TestUpdateResources(t *testing.T) {
	s := closing(t, fakeServer(t, newWorld(), t.TempDir()))
	id := createContainer(t, s, runPod(t, s, "a"), "c")
	update := func(r *runtimeapi.LinuxContainerResources) {
		t.Helper()
		if _, err := s.UpdateContainerResources(t.Context(), &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: r}); err != nil {
			t.Fatal(err)
		}
	}
	update(&runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 1 << 20})
	startContainer(t, s, id)
	update(&runtimeapi.LinuxContainerResources{CpuShares: 7})
	if r := statusOf(t, s, id).Resources.Linux; r.MemoryLimitInBytes != 1<<20 || r.CpuShares != 7 {
		t.Errorf("got %v", r)
	}
	spec, err := host.ReadSpec(s.core.host.Paths.Container(id).Spec())
	if err != nil || *spec.Linux.Resources.Memory.Limit != 1<<20 || len(spec.Linux.Resources.Devices) == 0 {
		t.Errorf("specification: %+v, %v", spec, err)
	}
}

func TestStartGoesOnWithoutItsCaller(t *testing.T) {
	w := newWorld()
	s := closing(t, fakeServer(t, w, t.TempDir()))
	pod := runPod(t, s, "a")
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan struct{})
	w.keeper(pod).early = func(string) {
		cancel()
		<-left
	}
	id := createContainer(t, s, pod, "c")
	if _, err := s.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id}); status.Code(err) != codes.Canceled {
		t.Errorf("got %v", err)
	}
	close(left)
	if _, err := s.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 30}); err != nil {
		t.Fatal(err)
	}
	if st := statusOf(t, s, id); st.State != runtimeapi.ContainerState_CONTAINER_EXITED || st.ExitCode != 143 {
		t.Errorf("it was started and not stopped: %v", st)
	}
}

func TestPodsEndThoughRecordsCannotBeWritten(t *testing.T) {
	w := newWorld()
	s := fakeServer(t, w, t.TempDir())
	pod := runPod(t, s, "a")
	id := createContainer(t, s, pod, "c")
	startContainer(t, s, id)
	if err := s.core.db.Close(); err != nil { // as good as a full disk
		t.Fatal(err)
	}
	if err := stopPod(t, s, pod); err != nil {
		t.Error(err)
	}
	if st := statusOf(t, s, id); st.State != runtimeapi.ContainerState_CONTAINER_EXITED {
		t.Errorf("got %v", st)
	}
	if _, err := s.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: podConfig("b")}); err == nil {
		t.Error("a sandbox runs that nothing records")
	}
	s.core.tasks.End()
}
