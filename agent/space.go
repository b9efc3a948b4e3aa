package agent

import (
	"context"
	"log/slog"
	"strings"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod"
)

// freeingRuntime has images removed at once where another one cannot be pulled for want of space, and pulls it again.
type freeingRuntime struct {
	pod.Runtime
	free func(context.Context) (bool, error) // false: there is nothing more to be removed
	log  *slog.Logger
}

// PullImage implements [pod.Runtime].
func (r freeingRuntime) PullImage(ctx context.Context, req *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	for {
		resp, err := r.Runtime.PullImage(ctx, req)
		if err == nil || ctx.Err() != nil || !lacksSpace(err) {
			return resp, err
		}
		r.log.Warn("image cannot be pulled for want of space", "image", req.GetImage().GetImage(), "error", err)
		freed, freeErr := r.free(ctx)
		if freeErr != nil {
			r.log.Warn("images are not removed", "error", freeErr)
		}
		if !freed {
			return resp, err
		}
	}
}

// lacksSpace says that an error is of a full file system or quota. A runtime behind a socket has words only.
func lacksSpace(err error) bool {
	return strings.Contains(err.Error(), unix.ENOSPC.Error()) || strings.Contains(err.Error(), unix.EDQUOT.Error())
}

// freeImages removes images once it is known which pods there are: before, their images would be nobody's.
func (a *Agent) freeImages(ctx context.Context) (bool, error) {
	select {
	case <-a.read:
		return a.images.Free(ctx)
	default:
		return false, nil
	}
}
