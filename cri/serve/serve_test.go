package serve

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/internal/socket"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a runtime of a few strange methods.
type fake struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer
	waiting chan struct{}
}

func (*fake) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{RuntimeName: "fake"}, nil
}

func (*fake) StopPodSandbox(context.Context, *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	panic("at the disco")
}

func (*fake) RemoveContainer(context.Context, *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	return nil, context.DeadlineExceeded
}

func (*fake) StartContainer(context.Context, *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	return nil, errors.New("no")
}

func (*fake) ContainerStatus(context.Context, *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	return nil, status.Error(codes.NotFound, "none")
}

func (f *fake) StopContainer(ctx context.Context, _ *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	f.waiting <- struct{}{}
	<-f.waiting
	return &runtimeapi.StopContainerResponse{}, nil
}

func (f *fake) GetContainerEvents(_ *runtimeapi.GetEventsRequest, s grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse]) error {
	if err := s.Send(&runtimeapi.ContainerEventResponse{ContainerId: "c"}); err != nil {
		return err
	}
	<-s.Context().Done()
	return s.Context().Err()
}

func (*fake) StreamContainers(*runtimeapi.StreamContainersRequest, grpc.ServerStreamingServer[runtimeapi.StreamContainersResponse]) error {
	panic("again")
}

func (*fake) ListImages(context.Context, *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	return &runtimeapi.ListImagesResponse{Images: []*runtimeapi.Image{{Id: strings.Repeat("x", 10<<20)}}}, nil
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start serves a fake; stop ends it and returns what Run has.
func start(t *testing.T, path string, log *logBuffer) (f *fake, stop func() error) {
	t.Helper()
	f = &fake{waiting: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- Run(ctx, Config{
			Socket: "unix://" + path, Runtime: f, Images: f, Ready: func() { close(ready) },
			Log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		})
	}()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	stop = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() { _ = stop() })
	return f, stop
}

func dial(t *testing.T, path string) (runtimeapi.RuntimeServiceClient, runtimeapi.ImageServiceClient) {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return runtimeapi.NewRuntimeServiceClient(conn), runtimeapi.NewImageServiceClient(conn)
}

func TestCallsAreDecorated(t *testing.T) {
	path, log := filepath.Join(t.TempDir(), "cri.sock"), &logBuffer{}
	start(t, path, log)
	rt, img := dial(t, path)
	ctx := t.Context()
	if v, err := rt.Version(ctx, &runtimeapi.VersionRequest{}); err != nil || v.RuntimeName != "fake" {
		t.Errorf("got %v, %v", v, err)
	}
	for name, c := range map[string]struct {
		call func() error
		want codes.Code
	}{
		"StopPodSandbox panics": {func() error {
			_, err := rt.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: "s1"})
			return err
		}, codes.Internal},
		"RemoveContainer is out of time": {func() error { _, err := rt.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{}); return err }, codes.DeadlineExceeded},
		"StartContainer fails":           {func() error { _, err := rt.StartContainer(ctx, &runtimeapi.StartContainerRequest{}); return err }, codes.Unknown},
		"ContainerStatus finds nothing":  {func() error { _, err := rt.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{}); return err }, codes.NotFound},
		"CheckpointContainer is no method": {func() error {
			_, err := rt.CheckpointContainer(ctx, &runtimeapi.CheckpointContainerRequest{})
			return err
		}, codes.Unimplemented},
		"StreamContainers panics": {func() error {
			s, err := rt.StreamContainers(ctx, &runtimeapi.StreamContainersRequest{})
			if err == nil {
				_, err = s.Recv()
			}
			return err
		}, codes.Internal},
	} {
		if err := c.call(); status.Code(err) != c.want {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
	if l, err := img.ListImages(ctx, &runtimeapi.ListImagesRequest{}); err != nil || len(l.Images[0].Id) != 10<<20 {
		t.Errorf("large answer: %v", err)
	}
	if _, err := img.ListImages(ctx, &runtimeapi.ListImagesRequest{Filter: &runtimeapi.ImageFilter{Image: &runtimeapi.ImageSpec{Image: strings.Repeat("x", 10<<20)}}}); err != nil {
		t.Errorf("large request: %v", err)
	}
	for _, want := range []string{`msg="call panicked" rpc=StopPodSandbox panic="at the disco"`, "rpc=StreamContainers", "msg=call rpc=StopPodSandbox", "code=Internal sandbox=s1"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, log)
		}
	}
}

func TestEndIsGraceful(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cri.sock")
	f, stop := start(t, path, &logBuffer{})
	rt, _ := dial(t, path)
	events, err := rt.GetContainerEvents(t.Context(), &runtimeapi.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if e, err := events.Recv(); err != nil || e.ContainerId != "c" {
		t.Fatalf("got %v, %v", e, err)
	}
	called := make(chan error, 1)
	go func() {
		_, err := rt.StopContainer(context.Background(), &runtimeapi.StopContainerRequest{})
		called <- err
	}()
	<-f.waiting
	ended := make(chan error, 1)
	go func() { ended <- stop() }()
	if _, err := events.Recv(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "stopping") {
		t.Errorf("the events ended with %v", err)
	}
	f.waiting <- struct{}{}
	if err := <-called; err != nil {
		t.Errorf("a call that was under way: %v", err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), strings.Repeat("long", 30), "cri.sock") // longer than an address may be
	_, stop := start(t, path, &logBuffer{})
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v", st, err)
	}
	f := &fake{}
	if err := Run(t.Context(), Config{Socket: path, Runtime: f, Images: f}); !errors.Is(err, socket.ErrInUse) {
		t.Errorf("a second server: %v", err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}

	// A process that was killed leaves its socket.
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: "/proc/self/fd/" + strconv.Itoa(int(dir.Fd())) + "/cri.sock", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	// Or one that it was still making.
	if err := errors.Join(os.Mkdir(Private(path), 0o700), os.WriteFile(filepath.Join(Private(path), "s"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	_, stop = start(t, path, &logBuffer{})
	if err := stop(); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}

	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), Config{Socket: path, Runtime: f, Images: f}); err == nil {
		t.Error("a file was taken for a socket")
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "precious" {
		t.Errorf("got %q, %v", b, err)
	}
	for _, bad := range []string{"", "cri.sock", "tcp://127.0.0.1:1", "/a/../b"} {
		if err := Run(t.Context(), Config{Socket: bad, Runtime: f, Images: f}); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

// TestSocketIsMadeAgain: clients reach the runtime after somebody has removed its socket, and a call that goes on is
// not cut.
func TestSocketIsMadeAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cri.sock")
	f, stop := start(t, path, &logBuffer{})
	before, _ := dial(t, path)
	long := make(chan error, 1)
	go func() {
		_, err := before.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: "waits"})
		long <- err
	}()
	<-f.waiting
	for what, harm := range map[string]func() error{
		"removed": func() error { return os.Remove(path) },
		"replaced": func() error {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path + ".x", Net: "unix"})
			if err != nil {
				return err
			}
			l.SetUnlinkOnClose(false)
			return errors.Join(l.Close(), os.Rename(path+".x", path))
		},
	} {
		if err := harm(); err != nil {
			t.Fatal(err)
		}
		c, _ := dial(t, path)
		if _, err := c.Version(t.Context(), &runtimeapi.VersionRequest{}, grpc.WaitForReady(true)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v", what, info, err)
		}
	}
	f.waiting <- struct{}{}
	if err := <-long; err != nil {
		t.Errorf("a call that was on its way: %v", err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err == nil {
		t.Error("the socket is left")
	}
}
