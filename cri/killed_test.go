package cri

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The test binary is started again to be killed: with these in its environment it runs a Server until the point of that
// number.
const (
	envPoint = "BERTH_TEST_KILL_AT"
	envDir   = "BERTH_TEST_DIR"
	envPid   = "BERTH_TEST_PID"
)

func TestMain(m *testing.M) {
	if log := os.Getenv(pluginEnv); log != "" {
		if err := beTestPlugin(log); err != nil {
			os.Exit(1)
		}
		return
	}
	switch os.Getenv(envPoint) {
	case "":
	case "any":
		restless()
		return
	default:
		victim()
		return
	}
	code := m.Run()
	for _, dir := range built {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// victim takes a pod through its life and kills its own process at one point of it.
func victim() {
	at, err := strconv.ParseInt(os.Getenv(envPoint), 10, 64)
	if err != nil {
		panic(err)
	}
	pid, err := strconv.Atoi(os.Getenv(envPid))
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	n := &node{cfg: nodeConfig(&testing.B{}, os.Getenv(envDir), pid)}
	if n.Server, err = New(ctx, n.cfg); err != nil {
		panic(err)
	}
	var count atomic.Int64
	n.core.host.Steps.At = func(point string) {
		if i := count.Add(1); i == at {
			fmt.Println(point)
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
	}
	pod, _ := n.pod(&testing.B{}, "a", nil)
	id, err := n.tryRun(pod, "main", nil, "sleep", "1000")
	if err != nil {
		panic(err)
	}
	if _, err := n.tryRun(pod, "other", nil, "sleep", "1000"); err != nil {
		panic(err)
	}
	if _, err := n.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id}); err != nil {
		panic(err)
	}
	if _, err := n.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
		panic(err)
	}
	if _, err := n.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod}); err != nil {
		panic(err)
	}
	if _, err := n.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
		panic(err)
	}
	fmt.Println("survived")
	if err := n.Close(); err != nil {
		panic(err)
	}
}

// TestKilledAtEveryPoint kills a process with a Server in it before and after each of its steps, opens a Server on what
// it left, and looks at the kernel: everything there is must be what a record explains, and go with it.
func TestKilledAtEveryPoint(t *testing.T) {
	killAtEveryPoint(t, func(*testing.T, *node) {})
}

// TestKilledAtEveryPointAndLost does so with the records gone, so that only what pods have of their own explains
// anything.
func TestKilledAtEveryPointAndLost(t *testing.T) {
	killAtEveryPoint(t, func(t *testing.T, n *node) { n.lose(t, os.Remove) })
}

func killAtEveryPoint(t *testing.T, then func(*testing.T, *node)) {
	n := newNode(t)
	helper, err := buildHelper()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	step := 1
	if testing.Short() {
		step = 5
	}
	points := 0
	for at := 1; ; at += step {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), envPoint+"="+itoa(at), envDir+"="+filepath.Dir(n.cfg.RootDir), envPid+"="+itoa(os.Getpid()), "BERTH_TEST_HELPER="+helper)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, os.Stderr
		err := cmd.Run()
		point := string(bytes.TrimSpace(out.Bytes()))
		then(t, n)
		n.open(t)
		checkRecovered(t, n, fmt.Sprintf("killed at point %d, %s", at, point))
		if point == "survived" && err == nil {
			break
		}
		points++
		if ws, ok := cmd.ProcessState.Sys().(interface{ Signaled() bool }); !ok || !ws.Signaled() {
			t.Fatalf("point %d: the process ended by itself: %v, %s", at, err, point)
		}
		if t.Failed() {
			return
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if points < 40/step {
		t.Errorf("only %d points were seen", points)
	}
	if _, err := n.Local().Images().Get(boxImage); err != nil {
		t.Error(err)
	}
}

// restless takes pods through their lives, several at a time, until it is killed.
func restless() {
	pid, err := strconv.Atoi(os.Getenv(envPid))
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	n := &node{cfg: nodeConfig(&testing.B{}, os.Getenv(envDir), pid)}
	if n.Server, err = New(ctx, n.cfg); err != nil {
		panic(err)
	}
	fmt.Println("go")
	for i := range 4 {
		go func() {
			for j := 0; ; j++ {
				name := fmt.Sprintf("p%d-%d-%d", os.Getpid(), i, j)
				opts := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode(j % 2)}
				if i%2 == 1 {
					opts.UsernsOptions = ownIDs(65536)
				}
				pod, _ := n.pod(&testing.B{}, name, func(cfg *runtimeapi.PodSandboxConfig) { cfg.Linux.SecurityContext.NamespaceOptions = opts })
				cmd := []string{"sleep", "1000"}
				if j%2 == 1 {
					cmd = []string{"true"}
				}
				own := func(cfg *runtimeapi.ContainerConfig) { securityOf(cfg).NamespaceOptions = opts }
				id, err := n.tryRun(pod, "main", own, cmd...)
				if err != nil {
					panic(err)
				}
				if _, err := n.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: int64(j % 3)}); err != nil {
					panic(err)
				}
				if _, err := n.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
					panic(err)
				}
			}
		}()
	}
	select {}
}

// TestKilledAtAnyMoment kills a busy Server where no point is: in the middle of its steps and of what the keepers do
// for it.
func TestKilledAtAnyMoment(t *testing.T) {
	n := usernsNode(t)
	helper, err := buildHelper()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	kills := 25
	if testing.Short() {
		kills = 5
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for i := range kills {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), envPoint+"=any", envDir+"="+filepath.Dir(n.cfg.RootDir), envPid+"="+itoa(os.Getpid()), "BERTH_TEST_HELPER="+helper)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		var errs bytes.Buffer
		cmd.Stderr = &errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 2)); err != nil {
			t.Fatalf("%v: %s", err, errs.String())
		}
		time.Sleep(time.Duration(rnd.IntN(400000)) * time.Microsecond)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if errs.Len() > 0 {
			t.Fatalf("it failed before it was killed: %s", errs.String())
		}
		n.open(t)
		checkRecovered(t, n, fmt.Sprintf("kill %d", i))
		if t.Failed() {
			return
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
	}
	n.open(t)
}

func checkRecovered(t *testing.T, n *node, when string) {
	t.Helper()
	ctx := context.Background()
	for _, c := range n.core.ctrs.Table.List(nil) {
		if c.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
			continue
		}
		// It may be ending right now, of itself or by a stop that came through; then its status says so soon.
		eventually(t, func() bool {
			r, err := n.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: c.Id, Cmd: []string{"true"}, Timeout: 30})
			return err == nil && r.ExitCode == 0 || statusOf(t, n.Server, c.Id).State != runtimeapi.ContainerState_CONTAINER_RUNNING
		})
		if t.Failed() {
			t.Errorf("%s: a container is running, and nothing can run in it", when)
		}
	}
	for _, p := range n.core.pods.Table.List(nil) {
		if err := removePod(t, n.Server, p.Id); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	if l := n.leaks(t); len(l) > 0 {
		t.Errorf("%s: left behind: %q", when, l)
	}
	// The kernel takes the ports away with the namespaces, a little later.
	eventually(t, func() bool {
		ports, _ := os.ReadDir("/sys/class/net/" + n.cfg.BridgeName + "/brif")
		return len(ports) == 0
	})
	for _, s := range n.core.host.Snaps.List() {
		if s.Kind != "layer" {
			t.Errorf("%s: snapshot %s is left", when, s.Key)
		}
	}
}
