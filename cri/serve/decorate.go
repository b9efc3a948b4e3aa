package serve

import (
	"context"
	"errors"
	"log/slog"
	"path"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// decorator is what is around every call.
type decorator struct {
	log      *slog.Logger
	stopping context.Context
}

func (d decorator) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (resp any, err error) {
	defer d.end(ctx, info.FullMethod, req, time.Now(), &err)
	return handle(ctx, req)
}

func (d decorator) stream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) (err error) {
	ctx, cancel := context.WithCancelCause(s.Context())
	defer cancel(nil)
	// A stream of events has no end of its own, and a server that stops would wait for it.
	unhook := context.AfterFunc(d.stopping, func() { cancel(context.Cause(d.stopping)) })
	defer unhook()
	defer d.end(ctx, info.FullMethod, nil, time.Now(), &err)
	return handle(srv, ending{s, ctx})
}

// ending is a stream that ends with another context than its own.
type ending struct {
	grpc.ServerStream
	ctx context.Context
}

func (e ending) Context() context.Context { return e.ctx }

// end gives the call's error its code, and tells of the call. It is to be deferred: it takes a panic for an error.
func (d decorator) end(ctx context.Context, method string, req any, began time.Time, err *error) {
	name := path.Base(method)
	if p := recover(); p != nil {
		d.log.Error("call panicked", "rpc", name, "panic", p, "stack", string(debug.Stack()))
		*err = status.Errorf(codes.Internal, "%s panicked: %v", name, p)
	}
	*err = withCode(ctx, *err)
	if !d.log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	args := append([]any{"rpc", name, "took", time.Since(began), "code", status.Code(*err)}, about(req)...)
	if *err != nil {
		args = append(args, "error", status.Convert(*err).Message())
	}
	d.log.DebugContext(ctx, "call", args...)
}

// withCode gives an error without a code the one that fits best.
func withCode(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	// What a call says when it is cut off because the server ends is no news; that it ends is.
	if ctx.Err() != nil && errors.Is(context.Cause(ctx), errStopping) {
		return errStopping
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	if errors.Is(err, errors.ErrUnsupported) {
		return status.Error(codes.Unimplemented, err.Error())
	}
	return status.FromContextError(err).Err()
}

// about is which sandbox, container or image a request is about.
func about(req any) []any {
	var out []any
	if r, ok := req.(interface{ GetPodSandboxId() string }); ok {
		out = append(out, "sandbox", r.GetPodSandboxId())
	}
	if r, ok := req.(interface{ GetContainerId() string }); ok {
		out = append(out, "id", r.GetContainerId())
	}
	return out
}
