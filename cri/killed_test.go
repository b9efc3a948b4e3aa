package cri

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The test binary is started anew to be killed: with these in its environment it runs a Server until the point of that number.
const (
	envPoint = "BERTH_TEST_KILL_AT"
	envDir   = "BERTH_TEST_DIR"
	envPid   = "BERTH_TEST_PID"
)

func TestMain(m *testing.M) {
	if os.Getenv(envPoint) != "" {
		victim()
		return
	}
	os.Exit(m.Run())
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
	n.machine.at = func(point string) {
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

// TestKilledAtEveryPoint kills a process with a Server in it before and after each of its steps, opens a Server on what it
// left, and looks at the kernel: everything there is must be what a record explains, and go with it.
func TestKilledAtEveryPoint(t *testing.T) {
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
	if _, err := n.Images().Get(boxImage); err != nil {
		t.Error(err)
	}
}

func checkRecovered(t *testing.T, n *node, when string) {
	t.Helper()
	ctx := context.Background()
	for _, c := range n.ctrs.list(nil) {
		if c.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
			continue
		}
		r, err := n.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: c.Id, Cmd: []string{"true"}, Timeout: 30})
		// It may have been killed by its stop just before the server was.
		if st := statusOf(t, n.Server, c.Id); st.State == runtimeapi.ContainerState_CONTAINER_RUNNING && (err != nil || r.ExitCode != 0) {
			t.Errorf("%s: a running container does not: %v, %v", when, r, err)
		}
	}
	for _, p := range n.pods.list(nil) {
		if err := removePod(t, n.Server, p.Id); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	if l := n.leaks(t); len(l) > 0 {
		t.Errorf("%s: left behind: %q", when, l)
	}
	for _, s := range n.machine.snaps.List() {
		if s.Kind != "layer" {
			t.Errorf("%s: snapshot %s is left", when, s.Key)
		}
	}
}
