package remote

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
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
			got = append(got, e.ContainerId+":"+strings.TrimSuffix(strings.TrimPrefix(e.ContainerEventType.String(), "CONTAINER_"), "_EVENT"))
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

// old is a runtime without a stream of events.
type old struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	mu         sync.Mutex
	containers []*runtimeapi.Container
}

func (o *old) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{{Id: "s", Labels: map[string]string{"a": "b"}}}}, nil
}

func (o *old) ListContainers(context.Context, *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return &runtimeapi.ListContainersResponse{Containers: o.containers}, nil
}

func TestEventsOfARuntimeWithoutThem(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server, o := grpc.NewServer(), &old{}
	runtimeapi.RegisterRuntimeServiceServer(server, o)
	go server.Serve(l)
	defer server.Stop()
	r, err := Dial(Config{Endpoint: "unix://" + path, Relist: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		time.Sleep(50 * time.Millisecond)
		o.mu.Lock()
		defer o.mu.Unlock()
		o.containers = []*runtimeapi.Container{{Id: "c", PodSandboxId: "s", State: runtimeapi.ContainerState_CONTAINER_EXITED}}
	}()
	var got []string
	err = r.Events(ctx, func(e *runtimeapi.ContainerEventResponse) {
		got = append(got, e.ContainerEventType.String()+" "+e.PodSandboxStatus.Labels["a"])
		if len(got) == 3 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) && !strings.Contains(err.Error(), "canceled") {
		t.Errorf("events ended with %v", err)
	}
	want := []string{"CONTAINER_CREATED_EVENT b", "CONTAINER_STARTED_EVENT b", "CONTAINER_STOPPED_EVENT b"}
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
