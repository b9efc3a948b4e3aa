package remote

import (
	"context"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// requestTimeout is how long a call may take that nothing else limits: as long as with kubelet, whose
// runtimeRequestTimeout it is by default. A runtime that does not answer for one container answers for others.
const requestTimeout = 2 * time.Minute

// unlimited are the calls that take as long as they take: a pull as its registry does, and a command or a checkpoint
// that nobody has given a time.
var unlimited = map[string]bool{
	runtimeapi.ImageService_PullImage_FullMethodName:             true,
	runtimeapi.RuntimeService_ExecSync_FullMethodName:            true,
	runtimeapi.RuntimeService_CheckpointContainer_FullMethodName: true,
}

// limited bounds the calls whose context does not.
func limited(limit time.Duration) grpc.UnaryClientInterceptor {
	return func(
		ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
	) error {
		if _, has := ctx.Deadline(); !has && !unlimited[method] {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, limit)
			defer cancel()
		}
		return invoke(ctx, method, req, reply, conn, opts...)
	}
}
