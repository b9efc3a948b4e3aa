package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/berth-node/berth/agent/api"
)

// Prune has the agent remove what no pod needs, or only say what that is.
func (c *Client) Prune(ctx context.Context, dryRun bool) (*api.Pruned, error) {
	q := values()
	if dryRun {
		q.Set("dryRun", "true")
	}
	resp, err := c.Do(ctx, http.MethodPost, "/prune", q)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	out := &api.Pruned{}
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return nil, fmt.Errorf("decode answer: %w", err)
	}
	return out, nil
}
