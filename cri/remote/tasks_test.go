package remote

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// lost is containerd with containers that it takes for ones which never ran, though they have a task.
type lost struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	mu    sync.Mutex
	tasks map[string]codes.Code // by container; what their deletion comes to
}

func (l *lost) remove(id string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.tasks[id]; ok {
		return status.Errorf(codes.FailedPrecondition, "cannot delete running task %s", id)
	}
	return nil
}

func (l *lost) RemoveContainer(_ context.Context, r *runtimeapi.RemoveContainerRequest) (
	*runtimeapi.RemoveContainerResponse, error,
) {
	return &runtimeapi.RemoveContainerResponse{}, l.remove(r.GetContainerId())
}

func (l *lost) RemovePodSandbox(_ context.Context, r *runtimeapi.RemovePodSandboxRequest) (
	*runtimeapi.RemovePodSandboxResponse, error,
) {
	return &runtimeapi.RemovePodSandboxResponse{}, l.remove(r.GetPodSandboxId() + "-main")
}

func (l *lost) ListContainers(_ context.Context, r *runtimeapi.ListContainersRequest) (
	*runtimeapi.ListContainersResponse, error,
) {
	return &runtimeapi.ListContainersResponse{
		Containers: []*runtimeapi.Container{{Id: r.GetFilter().GetPodSandboxId() + "-main"}},
	}, nil
}

func (l *lost) delete(ctx context.Context, id string) error {
	md, _ := metadata.FromIncomingContext(ctx)
	if ns := md.Get("containerd-namespace"); !slices.Equal(ns, []string{"k8s.io"}) {
		return status.Errorf(codes.FailedPrecondition, "namespace %q", ns)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	code, ok := l.tasks[id]
	if !ok {
		return status.Error(codes.NotFound, "no task")
	}
	if code == codes.OK {
		delete(l.tasks, id)
	}
	return status.Error(code, "cannot delete a running process")
}

// tasksService is the part of containerd's that is asked for.
var tasksService = grpc.ServiceDesc{
	ServiceName: "containerd.services.tasks.v1.Tasks",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Delete", Handler: func(
		srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor,
	) (any, error) {
		req := new(wrapperspb.StringValue)
		if err := decode(req); err != nil {
			return nil, err
		}
		return req, srv.(*lost).delete(ctx, req.GetValue())
	}}},
}

// TestLostTasks: a container that containerd refuses to remove for the sake of a task goes when that can be deleted.
// Another runtime's refusal is told as it is.
func TestLostTasks(t *testing.T) {
	for name, isContainerd := range map[string]bool{"containerd": true, "another": false} {
		t.Run(name, func(t *testing.T) {
			l := &lost{tasks: map[string]codes.Code{"a": codes.OK, "s-main": codes.OK, "runs": codes.FailedPrecondition}}
			server := grpc.NewServer()
			runtimeapi.RegisterRuntimeServiceServer(server, l)
			if isContainerd {
				server.RegisterService(&tasksService, l)
			}
			path := filepath.Join(t.TempDir(), "s")
			listener, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			go server.Serve(listener)
			defer server.Stop()
			var log bytes.Buffer
			r, err := Dial(Config{Endpoint: path, Log: slog.New(slog.NewTextHandler(&log, nil))})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			_, err = r.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: "a"})
			_, err2 := r.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: "s"})
			_, err3 := r.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: "none"})
			if err3 != nil || isContainerd && (err != nil || err2 != nil) ||
				!isContainerd && (status.Code(err) != codes.FailedPrecondition || status.Code(err2) != codes.FailedPrecondition) {
				t.Errorf("removed with %v, %v, %v", err, err2, err3)
			}
			_, err = r.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: "runs"})
			if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "cannot delete running task") {
				t.Errorf("what runs was removed with %v", err)
			}
			if said := strings.Contains(log.String(), "id=runs"); said != isContainerd {
				t.Errorf("logged: %s", log.String())
			}
		})
	}
}
