// Package remote is any CRI runtime behind a socket, with the methods of the embedded one: containerd's, CRI-O's, or
// berth's own when it runs alone.
package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxMessage is how large an answer may be: lists of many containers with long annotations pass gRPC's 4 MiB.
const maxMessage = 16 << 20

// maxRetry is how long a runtime may be there again before it is tried. gRPC's own two minutes would be long for the
// pods.
const maxRetry = 3 * time.Second

// Config says which runtime.
type Config struct {
	// Endpoint is the runtime's socket, as a path or a unix:// URL.
	Endpoint string
	// Relist is how often a runtime without a stream of events is asked for its lists while something runs in it whose
	// end the kernel does not tell; 0 is a second. Check is how often it is asked all the same otherwise; 0 is 30
	// seconds.
	Relist, Check time.Duration
	// Limit is how long a call may take that nothing else limits; 0 is two minutes.
	Limit time.Duration
	Log   *slog.Logger
}

// Runtime is a runtime behind a connection, which is made again whenever it breaks. Its calls are parted as those of
// the agent's interface for runtimes are.
type Runtime struct {
	sandboxes
	containers
	images
	streams
	stats
	node

	link     link
	relister relister // for a runtime without a stream of events
	room     room
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
		grpc.WithUnaryInterceptor(limited(cmp.Or(c.Limit, requestTimeout))),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return nil, fmt.Errorf("dial runtime %s: %w", path, err)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	client, changed, tasks := runtimeapi.NewRuntimeServiceClient(conn), make(chan struct{}, 1), tasks{conn, c.Log}
	r := &Runtime{
		sandboxes: sandboxes{client, changed, tasks}, containers: containers{client, changed, tasks},
		streams: streams{client}, stats: stats{client}, node: node{client},
		images: images{runtimeapi.NewImageServiceClient(conn)},
		link:   link{path: path, conn: conn, client: client, log: c.Log},
	}
	r.relister = relister{
		sandboxes: r.sandboxes, containers: r.containers, changed: changed,
		relist: cmp.Or(c.Relist, time.Second), check: cmp.Or(c.Check, 30*time.Second), log: c.Log,
	}
	return r, nil
}

// Close ends the connection.
func (r *Runtime) Close() error { return r.link.conn.Close() }

// Run keeps the connection up until ctx ends, and closes it.
func (r *Runtime) Run(ctx context.Context) error { return r.link.keepUp(ctx) }

// ImageHandler serves the images to the CLI as [cri.Local.ImageHandler] does, as far as the CRI goes: it tells no
// progress of a pull, and has no import.
func (r *Runtime) ImageHandler() http.Handler { return newImageHandler(r, r.link.path, &r.room) }

// AskForRoom has fn called from now on where an image of a command has no room. It says whether there may be more room
// now than at that moment.
func (r *Runtime) AskForRoom(fn func(ctx context.Context, since time.Time) (bool, error)) {
	r.room.make.Store(&fn)
}

// Events calls fn with every event of a container or sandbox until ctx ends or the runtime goes away. Of a runtime that
// has no stream of events the lists are compared whenever a process has ended or something was done through r.
func (r *Runtime) Events(ctx context.Context, fn func(*runtimeapi.ContainerEventResponse)) error {
	err := r.link.events(ctx, fn)
	if errors.Is(err, errNoEvents) {
		r.link.log.Info("runtime has no stream of events, its processes are watched instead")
		return r.relister.events(ctx, fn)
	}
	return err
}
