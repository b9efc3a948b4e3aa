package remote

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// patient is a runtime that notes how much time its calls have, 0: no end. It never says what its status is.
type patient struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	has chan time.Duration
}

func (p *patient) note(ctx context.Context) {
	deadline, has := ctx.Deadline()
	if !has {
		p.has <- 0
		return
	}
	p.has <- time.Until(deadline)
}

func (p *patient) Version(ctx context.Context, _ *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	p.note(ctx)
	return &runtimeapi.VersionResponse{}, nil
}

func (p *patient) ExecSync(ctx context.Context, _ *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	p.note(ctx)
	return &runtimeapi.ExecSyncResponse{}, nil
}

func (p *patient) Status(ctx context.Context, _ *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	<-ctx.Done()
	return nil, status.FromContextError(ctx.Err()).Err()
}

// TestLimits: no call waits for ever but those that may, and who has a limit of his own keeps it.
func TestLimits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server, p := grpc.NewServer(), &patient{has: make(chan time.Duration, 1)}
	runtimeapi.RegisterRuntimeServiceServer(server, p)
	go server.Serve(l)
	defer server.Stop()
	dial := func(limit time.Duration) *Runtime {
		r, err := Dial(Config{Endpoint: path, Limit: limit})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Close() })
		return r
	}
	r := dial(0)
	if _, err := r.Version(t.Context(), &runtimeapi.VersionRequest{}); err != nil {
		t.Fatal(err)
	}
	if has := <-p.has; has <= 0 || has > requestTimeout {
		t.Errorf("a call has %s", has)
	}
	if _, err := r.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{}); err != nil {
		t.Fatal(err)
	}
	if has := <-p.has; has != 0 {
		t.Errorf("a command without an end has %s", has)
	}
	long, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	if _, err := r.Version(long, &runtimeapi.VersionRequest{}); err != nil {
		t.Fatal(err)
	}
	if has := <-p.has; has <= requestTimeout {
		t.Errorf("a call that has an hour has %s", has)
	}
	if _, err := dial(10*time.Millisecond).Status(t.Context(), &runtimeapi.StatusRequest{}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("the status of a runtime that does not tell it: %v", err)
	}
}
