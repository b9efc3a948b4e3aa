package remote

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestChanges(t *testing.T) {
	listOf := func(s string) listing {
		l := listing{things: things{}}
		for f := range strings.FieldsSeq(s) {
			id, state, _ := strings.Cut(f, ":")
			l.things[id] = thing{sandbox: "s", started: state != "created", stopped: state == "exited"}
		}
		return l
	}
	for _, c := range []struct{ before, now, want string }{
		{"", "", ""},
		{"", "a:created", "a:CREATED"},
		{"", "a:running", "a:CREATED a:STARTED"},
		{"", "a:exited", "a:CREATED a:STARTED a:STOPPED"},
		{"a:created", "a:exited", "a:STARTED a:STOPPED"},
		{"a:running", "a:running", ""},
		{"a:running", "", "a:DELETED"},
		{"a:running b:exited", "b:exited c:created", "a:DELETED c:CREATED"},
	} {
		var got []string
		for _, e := range changes(listOf(c.before), listOf(c.now).things) {
			got = append(got, e.ContainerId+":"+strings.TrimSuffix(strings.TrimPrefix(e.ContainerEventType.String(),
				"CONTAINER_"), "_EVENT"))
			if e.PodSandboxStatus.Id != "s" {
				t.Errorf("event of sandbox %q", e.PodSandboxStatus.Id)
			}
		}
		slices.SortStableFunc(got, func(a, b string) int { return strings.Compare(a[:1], b[:1]) })
		if g := strings.Join(got, " "); g != c.want {
			t.Errorf("%q to %q: got %q, want %q", c.before, c.now, g, c.want)
		}
	}
}

// old is a runtime without a stream of events, with one container.
type old struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	pid             int
	asked           func()
	knows           bool // the method, which ends at once, as CRI-O's does
	listings        atomic.Int32
	statuses        atomic.Int32 // of the sandbox
	exited, removed atomic.Bool
}

func (o *old) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{}, nil
}

func (o *old) GetContainerEvents(
	*runtimeapi.GetEventsRequest, grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse],
) error {
	if o.knows {
		return nil
	}
	return status.Error(codes.Unimplemented, "unknown method")
}

func (o *old) ListPodSandbox(
	context.Context, *runtimeapi.ListPodSandboxRequest,
) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{
		Items: []*runtimeapi.PodSandbox{{Id: "s", Labels: map[string]string{"a": "b"}}},
	}, nil
}

func (o *old) PodSandboxStatus(
	context.Context, *runtimeapi.PodSandboxStatusRequest,
) (*runtimeapi.PodSandboxStatusResponse, error) {
	o.statuses.Add(1)
	return &runtimeapi.PodSandboxStatusResponse{}, nil
}

// anywhere is in the name of every cgroup, as the IDs of containers are in those of theirs.
const anywhere = "/"

func (o *old) ListContainers(
	context.Context, *runtimeapi.ListContainersRequest,
) (*runtimeapi.ListContainersResponse, error) {
	o.listings.Add(1)
	if o.removed.Load() {
		return &runtimeapi.ListContainersResponse{}, nil
	}
	state := runtimeapi.ContainerState_CONTAINER_RUNNING
	if o.exited.Load() {
		state = runtimeapi.ContainerState_CONTAINER_EXITED
	}
	return &runtimeapi.ListContainersResponse{
		Containers: []*runtimeapi.Container{{Id: anywhere, PodSandboxId: "s", State: state}},
	}, nil
}

func (o *old) ContainerStatus(
	context.Context, *runtimeapi.ContainerStatusRequest,
) (*runtimeapi.ContainerStatusResponse, error) {
	defer o.asked()
	return &runtimeapi.ContainerStatusResponse{Info: map[string]string{"info": fmt.Sprintf(`{"pid": %d}`, o.pid)}}, nil
}

func (o *old) RemoveContainer(
	context.Context, *runtimeapi.RemoveContainerRequest,
) (*runtimeapi.RemoveContainerResponse, error) {
	o.removed.Store(true)
	return &runtimeapi.RemoveContainerResponse{}, nil
}

// TestEventsOfARuntimeWithoutThem kills a container's process. The runtime takes its time to know of it.
func TestEventsOfARuntimeWithoutThem(t *testing.T) {
	for name, knows := range map[string]bool{"Unimplemented": false, "EndsAtOnce": true} {
		t.Run(name, func(t *testing.T) { eventsWithoutStream(t, knows) })
	}
}

func eventsWithoutStream(t *testing.T, knows bool) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	o := &old{pid: cmd.Process.Pid, knows: knows}
	runtimeapi.RegisterRuntimeServiceServer(server, o)
	go server.Serve(l)
	defer server.Stop()
	r, err := Dial(Config{Endpoint: "unix://" + path, Check: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := r.Events(ctx, nil); !errors.Is(err, errAway) {
		t.Fatalf("events of a runtime that has just come: %v", err)
	}
	watched := make(chan struct{})
	o.asked = sync.OnceFunc(func() { close(watched) })
	go func() {
		<-watched
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		for o.listings.Load() < 3 { // it has asked again, in vain
			runtime.Gosched()
		}
		o.exited.Store(true)
	}()
	var got []string
	tell := func(e *runtimeapi.ContainerEventResponse) {
		got = append(got, e.ContainerEventType.String()+" "+e.PodSandboxStatus.Labels["a"])
		switch e.ContainerEventType {
		case runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT: // a call of ours is seen, too
			if _, err := r.RemoveContainer(ctx,
				&runtimeapi.RemoveContainerRequest{ContainerId: e.ContainerId}); err != nil {
				t.Error(err)
			}
		case runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT:
			cancel()
		}
	}
	// gRPC lets calls by before it says that the connection is ready.
	for err = errAway; errors.Is(err, errAway); {
		err = r.Events(ctx, tell)
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("events ended with %v", err)
	}
	if n := o.statuses.Load(); n != 1 {
		t.Errorf("a sandbox without a process was asked for its process %d times", n)
	}
	want := []string{"CONTAINER_STOPPED_EVENT b", "CONTAINER_DELETED_EVENT b"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestDialRefusesRelativePaths(t *testing.T) {
	for _, e := range []string{"", "containerd.sock", "tcp://127.0.0.1:1"} {
		if _, err := Dial(Config{Endpoint: e}); err == nil {
			t.Errorf("%q was taken", e)
		}
	}
}
