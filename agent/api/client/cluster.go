package client

import (
	"context"
	"errors"
	"net/http"

	"github.com/berth-node/berth/agent/cluster"
)

// FindCluster asks how the node and its API server stand to each other. The phase is empty where it has none.
func FindCluster(ctx context.Context, c *Client) (cluster.State, error) {
	var s cluster.State
	_, err := c.get(ctx, "/cluster", nil, &s)
	if e, ok := errors.AsType[*Error](err); ok && e.Code == http.StatusNotFound {
		return cluster.State{}, nil
	}
	return s, err
}
