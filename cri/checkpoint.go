package cri

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/berth-node/berth/cri/checkpoint"
	"github.com/berth-node/berth/cri/container"
	"github.com/berth-node/berth/internal/filetree"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// checkpointTimeout is how long a checkpoint may take when the client does not say it.
const checkpointTimeout = 5 * time.Minute

// CheckpointContainer writes an archive of a running container, which goes on running. Where CRIU is missing, or cannot
// work on this kernel, it answers with the code Unimplemented and names what is missing.
func (c containerCalls) CheckpointContainer(ctx context.Context, r *runtimeapi.CheckpointContainerRequest) (*runtimeapi.CheckpointContainerResponse, error) {
	return call(ctx, "CheckpointContainer", func(ctx context.Context) (*runtimeapi.CheckpointContainerResponse, error) {
		ctr, _, err := c.ctrs.Table.Running(r.GetContainerId())
		if err != nil {
			return nil, err
		}
		limit := container.Seconds(r.GetTimeout())
		if limit == 0 {
			limit = checkpointTimeout
		}
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		if err := c.ctrs.Checkpoints.Checkpoint(ctx, ctr, r.GetLocation()); err != nil {
			return nil, fmt.Errorf("checkpoint container %s: %w", ctr.ID, err)
		}
		return &runtimeapi.CheckpointContainerResponse{}, nil
	})
}

// removeCheckpoint removes what a crash has left of a checkpoint. Who dumped the container may have been killed, too.
func (r *core) removeCheckpoint(id string) error {
	var err error
	if c, ok := r.ctrs.Table.ByID.Exact(id); ok && c.Record().State == container.Running {
		err = checkpoint.UnlockNetwork(c.Record().Pid)
	}
	return errors.Join(err, filetree.RemoveAll(context.Background(), filepath.Join(r.host.Paths.Checkpoints(), id)))
}
