package agent

import (
	"context"
	"log/slog"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod"
	"github.com/berth-node/berth/eviction/collect/images"
	"github.com/berth-node/berth/internal/disk"
)

// freeingRuntime has images removed at once where another one cannot be pulled for want of space, and pulls it once
// more.
type freeingRuntime struct {
	pod.Runtime
	free func(ctx context.Context, since time.Time) (bool, error) // false: there is nothing more to be removed
	log  *slog.Logger
}

// PullImage implements [pod.Runtime].
func (r freeingRuntime) PullImage(ctx context.Context, req *runtimeapi.PullImageRequest) (resp *runtimeapi.PullImageResponse, err error) {
	pull := func() error {
		resp, err = r.Runtime.PullImage(ctx, req)
		return err
	}
	return resp, disk.Again(ctx, pull, func(since time.Time, err error) bool {
		r.log.Warn("image cannot be pulled for want of space", "image", req.GetImage().GetImage(), "error", err)
		freed, freeErr := r.free(ctx, since)
		if freeErr != nil {
			r.log.Warn("images are not removed", "error", freeErr)
		}
		return freed
	})
}

// room is where images make place for what has none. It has no image removed before it is known which pods there are:
// until then their images would be nobody's.
type room struct {
	images *images.Collector
	read   <-chan struct{} // closed when it is known
}

// collect removes images by and by, until ctx ends.
func (r *room) collect(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-r.read:
		r.images.Run(ctx)
	}
}

// free removes images at once.
func (r *room) free(ctx context.Context, since time.Time) (bool, error) {
	select {
	case <-r.read:
		return r.images.Free(ctx, since)
	default:
		return false, nil
	}
}

// freeIfFull is free for what is no image.
func (r *room) freeIfFull(ctx context.Context, since time.Time) (bool, error) {
	select {
	case <-r.read:
		return r.images.FreeIfFull(ctx, since)
	default:
		return false, nil
	}
}

// freeForImport is free for an image that nobody waits for.
func (r *room) freeForImport(ctx context.Context, since time.Time) (bool, error) {
	select {
	case <-ctx.Done():
		return false, nil
	case <-r.read:
		return r.images.Free(ctx, since)
	}
}
