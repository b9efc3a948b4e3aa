package client

import (
	"context"
	"errors"
	"net/http"
)

// Membership is how the node and its API server stand to each other.
type Membership struct {
	Phase   string // "": the node has no API server
	Message string // what is the matter, and what to do
	Server  string
	Serving string // what the certificate of the node's own API waits for
}

// FindMembership asks for that.
func FindMembership(ctx context.Context, c *Client) (Membership, error) {
	var m Membership
	_, err := c.get(ctx, "/cluster", nil, &m)
	if e, ok := errors.AsType[*Error](err); ok && e.Code == http.StatusNotFound {
		return Membership{}, nil
	}
	return m, err
}
