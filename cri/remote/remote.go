// Package remote is any CRI runtime behind a socket, with the methods of the embedded one: containerd's, CRI-O's, or berth's own
// when it runs alone.
package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxMessage is how large an answer may be: lists of many containers with long annotations pass gRPC's 4 MiB.
const maxMessage = 16 << 20

// maxRetry is how long a runtime may be there again before it is tried. gRPC's own two minutes would be long for the pods.
const maxRetry = 3 * time.Second

// errAway says that events may have been missed.
var errAway = errors.New("runtime was away, and is there again")

// Config says which runtime.
type Config struct {
	// Endpoint is the runtime's socket, as a path or a unix:// URL.
	Endpoint string
	// Relist is how often a runtime without a stream of events is asked for its lists while something runs in it whose end the
	// kernel does not tell; 0 is a second. Check is how often it is asked all the same otherwise; 0 is 30 seconds.
	Relist, Check time.Duration
	Log           *slog.Logger
}

// Runtime is a connection to a runtime. It is made again whenever it breaks.
type Runtime struct {
	path    string
	conn    *grpc.ClientConn
	runtime runtimeapi.RuntimeServiceClient
	images  runtimeapi.ImageServiceClient
	log     *slog.Logger

	relist, check time.Duration
	changed       chan struct{} // a call was made that changes what there is
}

// Dial returns the runtime behind an endpoint. It does not wait for it: the first call does.
func Dial(c Config) (*Runtime, error) {
	path := strings.TrimPrefix(c.Endpoint, "unix://")
	if !strings.HasPrefix(path, "/") {
		return nil, fmt.Errorf("dial runtime %q: not the absolute path of a unix socket", c.Endpoint)
	}
	retry := grpc.ConnectParams{MinConnectTimeout: maxRetry, Backoff: backoff.DefaultConfig}
	retry.Backoff.BaseDelay, retry.Backoff.MaxDelay = 100*time.Millisecond, maxRetry
	conn, err := grpc.NewClient("unix://"+path, grpc.WithConnectParams(retry),
		grpc.WithTransportCredentials(insecure.NewCredentials()), // a socket's protection is its mode
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return nil, fmt.Errorf("dial runtime %s: %w", path, err)
	}
	r := &Runtime{
		path: path, conn: conn, runtime: runtimeapi.NewRuntimeServiceClient(conn), images: runtimeapi.NewImageServiceClient(conn),
		log: c.Log, relist: cmp.Or(c.Relist, time.Second), check: cmp.Or(c.Check, 30*time.Second), changed: make(chan struct{}, 1),
	}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	return r, nil
}

// Close ends the connection.
func (r *Runtime) Close() error { return r.conn.Close() }

// Run keeps the connection up until ctx ends, and closes it. Calls wait while the runtime is away; so that nobody has to guess, it
// is logged when that begins and when it is over.
func (r *Runtime) Run(ctx context.Context) error {
	away := false
	for {
		state := r.conn.GetState()
		switch state {
		case connectivity.Idle:
			r.conn.Connect()
		case connectivity.TransientFailure:
			if away {
				break
			}
			// A call that does not wait tells why.
			if _, err := r.runtime.Version(ctx, &runtimeapi.VersionRequest{}); err != nil && ctx.Err() == nil {
				away = true
				r.log.Warn("runtime cannot be reached, it is waited for", "socket", r.path, "error", err)
			}
		case connectivity.Ready:
			if away {
				away = false
				r.log.Info("runtime is there again", "socket", r.path)
			}
		}
		if !r.conn.WaitForStateChange(ctx, state) {
			return r.conn.Close()
		}
	}
}

// Events calls fn with every event of a container or sandbox until ctx ends or the runtime goes away. Of a runtime that has no
// stream of events the lists are compared whenever a process has ended or something was done through r.
func (r *Runtime) Events(ctx context.Context, fn func(*runtimeapi.ContainerEventResponse)) error {
	// Who calls takes a look when events are told, which is not before the runtime is there.
	if r.conn.GetState() != connectivity.Ready {
		if _, err := r.Version(ctx, &runtimeapi.VersionRequest{}); err != nil {
			return fmt.Errorf("wait for runtime: %w", err)
		}
		return errAway
	}
	stream, err := r.runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{}, grpc.WaitForReady(true))
	told := false
	for err == nil {
		var event *runtimeapi.ContainerEventResponse
		if event, err = stream.Recv(); err == nil {
			told = true
			fn(event)
		}
	}
	if !told && hasNoEvents(err) {
		r.log.Info("runtime has no stream of events, its processes are watched instead")
		return r.compareLists(ctx, fn)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("read runtime's events: %w", err)
}

// hasNoEvents says whether a stream that ended so without an event is none. containerd before 1.7 does not know the method; CRI-O whose
// configuration has events off ends the stream at once, and without an error. So may a runtime that is told to end, of which the
// lists are as true as its events.
func hasNoEvents(err error) bool {
	return status.Code(err) == codes.Unimplemented || errors.Is(err, io.EOF)
}
