package system

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// served is `berth runtime` with a client on its socket.
type served struct {
	*Node
	runtimeapi.RuntimeServiceClient
	conn *grpc.ClientConn
}

func (s *served) serve() {
	s.t.Helper()
	args := append([]string{
		"runtime", "--listen=unix://" + s.Dir + "/cri.sock", "--image-dir=" + s.Dir + "/images", "--cni-conf-dir=" + s.Dir +
			"/cni", "--nri=false",
	}, s.dirArgs()...)
	log, err := os.OpenFile(s.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(bin("berth"), args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() { cmd.Wait(); close(exited) }()
	s.cmd, s.exited = cmd, exited
	if s.conn != nil {
		s.conn.Close()
	}
	if s.conn, err = grpc.NewClient("unix://"+s.Dir+"/cri.sock",
		grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		s.t.Fatal(err)
	}
	s.RuntimeServiceClient = runtimeapi.NewRuntimeServiceClient(s.conn)
	images := runtimeapi.NewImageServiceClient(s.conn)
	s.eventually("the runtime to have its images", func() error {
		r, err := images.ImageStatus(context.Background(),
			&runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: image}})
		if err == nil && r.GetImage() == nil {
			err = fmt.Errorf("no %s", image)
		}
		return err
	})
}

// run makes a pod with one container, which writes a line again and again until it is told how to end.
func (s *served) run(ctx context.Context, name string) (string, error) {
	pod := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name}, Hostname: name,
		LogDirectory: filepath.Join(s.Dir, "logs", name),
	}
	sb, err := s.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: pod})
	if err != nil {
		return "", err
	}
	c, err := s.CreateContainer(ctx,
		&runtimeapi.CreateContainerRequest{
			PodSandboxId: sb.GetPodSandboxId(), SandboxConfig: pod,
			Config: &runtimeapi.ContainerConfig{
				Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Image: &runtimeapi.ImageSpec{Image: image}, LogPath: "main.log",
				Command: []string{"sh", "-c", "until [ -e /end ]; do echo line; sleep 2; done; exit $(cat /end)"},
			},
		})
	if err != nil {
		return "", err
	}
	_, err = s.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: c.GetContainerId()})
	if status.Code(err) == codes.Unavailable {
		// On a machine that has much else to do a keeper may answer too late, and then what was called off never runs.
		return s.run(ctx, name+"-again")
	}
	return c.GetContainerId(), err
}

func (s *served) sh(id, script string) error {
	r, err := s.ExecSync(context.Background(),
		&runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"sh", "-c", script}, Timeout: 60})
	if err == nil && r.GetExitCode() != 0 {
		err = fmt.Errorf("exit code %d: %s", r.GetExitCode(), r.GetStderr())
	}
	return err
}

func (s *served) state(id string) *runtimeapi.ContainerStatus {
	s.t.Helper()
	r, err := s.ContainerStatus(context.Background(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		s.t.Fatal(err)
	}
	return r.GetStatus()
}

// TestKilledRuntime kills the runtime under 50 live containers. State, logs, exec and stats go on; what has ended
// meanwhile has ended, and who subscribes again is told of what comes.
func TestKilledRuntime(t *testing.T) {
	t.Parallel()
	s := &served{Node: newNode(t)}
	s.serve()
	ctx, cancel := context.WithTimeout(t.Context(), 4*limit)
	defer cancel()
	ids := make([]string, 50)
	var g errgroup.Group
	g.SetLimit(8)
	for i := range ids {
		g.Go(func() (err error) { ids[i], err = s.run(ctx, fmt.Sprintf("pod%d", i)); return err })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	started := map[string]int64{}
	for _, id := range ids {
		started[id] = s.state(id).GetStartedAt()
	}
	s.kill()
	// The first is told to end while nobody looks, through its root file system.
	roots, err := filepath.Glob(filepath.Join(s.Dir, "run/containers", ids[0], "rootfs"))
	if err != nil || len(roots) != 1 {
		t.Fatalf("root file system of %s: %v, %v", ids[0], roots, err)
	}
	// Whole at once, or the container may find it empty.
	write(t, filepath.Join(roots[0], "end.new"), "7")
	if err := os.Rename(filepath.Join(roots[0], "end.new"), filepath.Join(roots[0], "end")); err != nil {
		t.Fatal(err)
	}
	s.serve()

	s.eventually("the end of the first to be known", func() error {
		if st := s.state(ids[0]); st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || st.GetExitCode() != 7 {
			return fmt.Errorf("it is %v", st)
		}
		return nil
	})
	stream, err := s.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	stats, err := s.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]uint64{}
	for _, st := range stats.GetStats() {
		used[st.GetAttributes().GetId()] = st.GetCpu().GetUsageCoreNanoSeconds().GetValue()
	}
	for i, id := range ids[1:] {
		st := s.state(id)
		if st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING || st.GetStartedAt() != started[id] || used[id] == 0 {
			t.Errorf("container %d: %v, used %d ns", i+1, st, used[id])
		}
		g.Go(func() error { return s.sh(id, "true") })
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	s.eventually("the logs to go on", func() error {
		for _, id := range ids[1:] {
			b, err := os.ReadFile(s.state(id).GetLogPath())
			if err != nil {
				return err
			}
			if last := strings.LastIndexByte(strings.TrimSpace(string(b)), '\n'); last < 0 || !newer(string(b[last+1:]), s.cmd) {
				return fmt.Errorf("container %s: nothing new", id)
			}
		}
		return nil
	})
	if err := s.sh(ids[1], "echo 3 >/end"); err != nil {
		t.Fatal(err)
	}
	for {
		e, err := stream.Recv()
		if err != nil {
			t.Fatalf("wait for the event of an exit: %v", err)
		}
		if e.GetContainerId() == ids[1] &&
			e.GetContainerEventType() == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT {
			break
		}
	}
	if st := s.state(ids[1]); st.GetExitCode() != 3 {
		t.Errorf("after the event: %v", st)
	}
}

// newer says whether a line of a log was written after the process had started.
func newer(line string, cmd *exec.Cmd) bool {
	at, _, _ := strings.Cut(line, " ")
	when, err := time.Parse(time.RFC3339Nano, at)
	fi, statErr := os.Stat(fmt.Sprintf("/proc/%d", cmd.Process.Pid))
	return err == nil && statErr == nil && when.After(fi.ModTime())
}
