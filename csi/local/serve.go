package local

import (
	"context"
	"log/slog"
	"net"
	"path"
	"runtime/debug"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-node/berth/internal/socket"
)

// maxMessage bounds a request, in bytes.
const maxMessage = 4 << 20

// stopTime is how long calls have to end when the driver does.
const stopTime = 10 * time.Second

// Serve serves the driver's services on a unix socket, given by its path or as a unix:// URL, until ctx ends. The
// caller has the data directory to itself, and so the socket: one that is left of a driver before is replaced, one that
// somebody listens on is an error.
func (d *Driver) Serve(ctx context.Context, endpoint string) error {
	at, err := socket.Path(endpoint)
	if err != nil {
		return err
	}
	l, err := socket.ListenPrivate(at, d.cfg.Log)
	if err != nil {
		return err
	}
	d.cfg.Log.Info("driver serves", "driver", Name, "socket", at, "node", d.cfg.NodeID, "data", d.cfg.DataDir)
	return d.ServeOn(ctx, l)
}

// ServeOn serves the driver's services on a listener, which it closes, until ctx ends.
func (d *Driver) ServeOn(ctx context.Context, l net.Listener) error {
	s := grpc.NewServer(grpc.UnaryInterceptor(decorator{d.cfg.Log}.unary), grpc.MaxRecvMsgSize(maxMessage))
	d.Register(s)
	stop := context.AfterFunc(ctx, func() {
		over := time.AfterFunc(stopTime, s.Stop)
		defer over.Stop()
		s.GracefulStop()
	})
	defer stop()
	return s.Serve(l)
}

// Register adds the driver's services to a server.
func (d *Driver) Register(s *grpc.Server) {
	csi.RegisterIdentityServer(s, identity{d: d})
	csi.RegisterControllerServer(s, controller{d: d})
	csi.RegisterGroupControllerServer(s, groups{d: d})
	csi.RegisterNodeServer(s, node{d: d})
}

// decorator is what is around every call.
type decorator struct{ log *slog.Logger }

func (d decorator) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (resp any, err error) {
	began, name := time.Now(), path.Base(info.FullMethod)
	// Not every caller says how long it waits, and none waits for ever.
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			d.log.Error("call panicked", "rpc", name, "panic", p, "stack", string(debug.Stack()))
			resp, err = nil, status.Errorf(codes.Internal, "%s panicked: %v", name, p)
		}
		if _, ok := status.FromError(err); err != nil && !ok {
			err = failed(name, err)
		}
		if err != nil {
			resp = nil
		}
		// The request itself may have secrets in it.
		args := []any{"rpc", name, "volume", volumeIn(req), "took", time.Since(began), "code", status.Code(err).String()}
		if err != nil {
			d.log.WarnContext(ctx, "call failed", append(args, "error", status.Convert(err).Message())...)
			return
		}
		d.log.DebugContext(ctx, "call", args...)
	}()
	return handle(ctx, req)
}

func volumeIn(req any) string {
	if r, ok := req.(interface{ GetVolumeId() string }); ok {
		return shorten(r.GetVolumeId())
	}
	return ""
}
