// Package remote is any CRI runtime behind a socket, with the methods of the embedded one: containerd's, CRI-O's, or berth's own
// when it runs alone.
package remote

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxMessage is how large an answer may be: lists of many containers with long annotations pass gRPC's 4 MiB.
const maxMessage = 16 << 20

// Config says which runtime.
type Config struct {
	// Endpoint is the runtime's socket, as a path or a unix:// URL.
	Endpoint string
	// Relist is how often a runtime without an event stream is asked for its lists; 0 is a second.
	Relist time.Duration
	Log    *slog.Logger
}

// Runtime is a connection to a runtime. It is made again whenever it breaks.
type Runtime struct {
	path    string
	conn    *grpc.ClientConn
	runtime runtimeapi.RuntimeServiceClient
	images  runtimeapi.ImageServiceClient
	relist  time.Duration
	log     *slog.Logger
}

// Dial returns the runtime behind an endpoint. It does not wait for it: the first call does.
func Dial(c Config) (*Runtime, error) {
	path := strings.TrimPrefix(c.Endpoint, "unix://")
	if !strings.HasPrefix(path, "/") {
		return nil, fmt.Errorf("dial runtime %q: not the absolute path of a unix socket", c.Endpoint)
	}
	conn, err := grpc.NewClient("unix://"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()), // a socket's protection is its mode
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return nil, fmt.Errorf("dial runtime %s: %w", path, err)
	}
	r := &Runtime{
		path: path, conn: conn, runtime: runtimeapi.NewRuntimeServiceClient(conn), images: runtimeapi.NewImageServiceClient(conn),
		relist: c.Relist, log: c.Log,
	}
	if r.relist == 0 {
		r.relist = time.Second
	}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	return r, nil
}

// Close ends the connection.
func (r *Runtime) Close() error { return r.conn.Close() }

// Events calls fn with every event of a container or sandbox until ctx ends or the runtime goes away. Of a runtime that has no
// stream of events the lists are asked for, and what has changed between two of them is told.
func (r *Runtime) Events(ctx context.Context, fn func(*runtimeapi.ContainerEventResponse)) error {
	stream, err := r.runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{}, grpc.WaitForReady(true))
	for err == nil {
		var event *runtimeapi.ContainerEventResponse
		if event, err = stream.Recv(); err == nil {
			fn(event)
		}
	}
	// containerd before 1.7 does not know the method, CRI-O answers so when its configuration has events off.
	if status.Code(err) == codes.Unimplemented || status.Code(err) == codes.Unavailable && strings.Contains(err.Error(), "not enabled") {
		r.log.Info("runtime has no stream of events, its lists are compared instead", "every", r.relist)
		return r.compareLists(ctx, fn)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("read runtime's events: %w", err)
}
