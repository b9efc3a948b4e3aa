package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// errAway says that events may have been missed.
var errAway = errors.New("runtime was away, and is there again")

// errNoEvents says that a runtime has no stream of events.
var errNoEvents = errors.New("runtime has no stream of events")

// link is the connection to a runtime, and what comes by it unasked.
type link struct {
	path   string
	conn   *grpc.ClientConn
	client runtimeapi.RuntimeServiceClient
	log    *slog.Logger
}

// keepUp keeps the connection up until ctx ends, and closes it. Calls wait while the runtime is away; so that nobody
// has to guess, it is logged when that begins and when it is over.
func (l link) keepUp(ctx context.Context) error {
	away := false
	for {
		state := l.conn.GetState()
		switch state {
		case connectivity.Idle:
			l.conn.Connect()
		case connectivity.TransientFailure:
			if away {
				break
			}
			// A call that does not wait tells why.
			if _, err := l.client.Version(ctx, &runtimeapi.VersionRequest{}); err != nil && ctx.Err() == nil {
				away = true
				l.log.Warn("runtime cannot be reached, it is waited for", "socket", l.path, "error", err)
			}
		case connectivity.Ready:
			if away {
				away = false
				l.log.Info("runtime is there again", "socket", l.path)
			}
		}
		if !l.conn.WaitForStateChange(ctx, state) {
			return l.conn.Close()
		}
	}
}

// events reads the stream of events; errNoEvents when there is none.
func (l link) events(ctx context.Context, fn func(*runtimeapi.ContainerEventResponse)) error {
	// Who calls takes a look when events are told, which is not before the runtime is there.
	if l.conn.GetState() != connectivity.Ready {
		if _, err := wait(ctx, l.client.Version, &runtimeapi.VersionRequest{}); err != nil {
			return fmt.Errorf("wait for runtime: %w", err)
		}
		return errAway
	}
	stream, err := l.client.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{}, grpc.WaitForReady(true))
	told := false
	for err == nil {
		var event *runtimeapi.ContainerEventResponse
		if event, err = stream.Recv(); err == nil {
			told = true
			fn(event)
		}
	}
	if !told && hasNoEvents(err) {
		return errNoEvents
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("read runtime's events: %w", err)
}

// hasNoEvents says whether a stream that ended so without an event is none. containerd before 1.7 does not know the
// method; CRI-O whose configuration has events off ends the stream at once, and without an error. So may a runtime that
// is told to end, of which the lists are as true as its events.
func hasNoEvents(err error) bool {
	return status.Code(err) == codes.Unimplemented || errors.Is(err, io.EOF)
}
