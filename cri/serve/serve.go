// Package serve serves a runtime's methods as the CRI on a unix socket. All that is true of every call alike is here,
// once: the code of an error, the log line, and that a panic is the end of a call and not of the runtime.
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/internal/socket"
)

// maxMessage is how large a request or an answer may be. Lists of many containers with long annotations pass gRPC's 4
// MiB, and clients of the CRI expect 16.
const maxMessage = 16 << 20

// grace is how long calls may go on when the server ends. Those that wait for long, such as for a container's end, are
// made again by their clients.
const grace = 5 * time.Second

// Config is what a server needs. Socket, Runtime and Images are required.
type Config struct {
	// Socket is the absolute path of the socket, or a unix:// URL of it. Only root can connect.
	Socket  string
	Runtime runtimeapi.RuntimeServiceServer
	Images  runtimeapi.ImageServiceServer
	// Ready is called when clients can connect.
	Ready func()
	Log   *slog.Logger
}

// errStopping is what ends the streams that have no end.
var errStopping = status.Error(codes.Unavailable, "the runtime is stopping")

// Private is the directory that the socket at path is made in.
func Private(path string) string { return socket.Private(path) }

// Run serves until ctx ends, then lets calls end. It fails at once when another runtime listens on the socket.
func Run(ctx context.Context, c Config) error {
	if c.Runtime == nil || c.Images == nil {
		return errors.New("serve CRI: runtime and images are required")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	path, err := socket.Path(c.Socket)
	if err != nil {
		return fmt.Errorf("serve CRI: %w", err)
	}
	l, err := socket.ListenPrivate(path, c.Log)
	if err != nil {
		return fmt.Errorf("serve CRI: %w", err)
	}
	stopping, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	d := decorator{log: c.Log, stopping: stopping}
	s := grpc.NewServer(
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage), grpc.WaitForHandlers(true),
		grpc.UnaryInterceptor(d.unary), grpc.StreamInterceptor(d.stream))
	runtimeapi.RegisterRuntimeServiceServer(s, c.Runtime)
	runtimeapi.RegisterImageServiceServer(s, c.Images)

	ended := make(chan struct{})
	unhook := context.AfterFunc(ctx, func() {
		defer close(ended)
		stop(errStopping)
		cut := time.AfterFunc(grace, s.Stop)
		defer cut.Stop()
		s.GracefulStop()
	})
	c.Log.Info("CRI is served", "socket", path)
	if c.Ready != nil {
		c.Ready()
	}
	err = s.Serve(l)
	if unhook() {
		// The listener broke by itself.
		s.Stop()
		return fmt.Errorf("serve CRI on %s: %w", path, err)
	}
	<-ended
	return nil
}
