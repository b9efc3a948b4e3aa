package client

import (
	"context"
	"errors"
)

// Manifests are where an agent takes the pods of this node from.
type Manifests struct {
	Dir  string // absolute; "" when there is none
	Node string // part of the name of each pod
}

// FindManifests asks where manifests are put.
func FindManifests(ctx context.Context, c *Client) (Manifests, error) {
	var answer struct {
		Config struct {
			Dir   string `json:"staticPodPath"`
			Berth struct {
				Node string `json:"nodeName"`
			} `json:"berth"`
		} `json:"kubeletconfig"`
	}
	if _, err := c.get(ctx, "/configz", nil, &answer); err != nil {
		return Manifests{}, err
	}
	m := Manifests{answer.Config.Dir, answer.Config.Berth.Node}
	if m.Dir == "" || m.Node == "" {
		return m, errors.New("find the directory of manifests: /configz of the agent names none")
	}
	return m, nil
}
