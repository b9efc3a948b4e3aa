package cri

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/step"
)

// Server is the runtime. It is safe for concurrent use. What its methods return shares parts with what it keeps, so it
// is for reading only.
//
// gRPC wants one type with all calls of a service, so this one has nothing but its parts: each has the calls about one
// thing. Images are a service of their own, [ImageServer].
type Server struct {
	podCalls
	containerCalls
	nodeCalls
	*meters
	*urls
	future

	core *core
}

// future answers the calls that later versions of the CRI add. It is one level deeper than the parts, whose calls are
// taken before those that gRPC has made of all that there are.
type future struct {
	runtimeapi.UnimplementedRuntimeServiceServer
}

var _ runtimeapi.RuntimeServiceServer = (*Server)(nil)

// newServer has the calls of a runtime that is open.
func newServer(r *core) *Server {
	return &Server{
		podCalls: podCalls{r.pods}, containerCalls: containerCalls{r.ctrs, r.pods}, nodeCalls: nodeCalls{r}, meters: r.meters, urls: r.urls,
		core: r,
	}
}

// call is what all calls have in common: the span, and the code an error has for clients.
func call[T any](ctx context.Context, name string, f func(context.Context) (T, error)) (T, error) {
	ctx, span := step.Tracer(ctx).Start(ctx, name)
	defer span.End()
	v, err := f(ctx)
	if err != nil {
		var none T
		span.RecordError(err)
		return none, asStatus(err)
	}
	return v, nil
}
