package client

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// SignCertificate has the node's authority sign a certificate request in PEM. It returns the certificate and the authorities by
// which the node is known, in PEM.
func (c *Client) SignCertificate(ctx context.Context, request []byte, life time.Duration) (cert, authorities []byte, err error) {
	resp, err := c.send(ctx, http.MethodPost, "/certificates", values("ttl", life.String()), bytes.NewReader(request))
	if cert, err = body(resp, err); err != nil {
		return nil, nil, err
	}
	authorities, err = body(c.Do(ctx, http.MethodGet, "/certificates/ca", nil))
	return cert, authorities, err
}

// Configz returns what /configz says.
func (c *Client) Configz(ctx context.Context) ([]byte, error) {
	return body(c.Do(ctx, http.MethodGet, "/configz", url.Values{}))
}

func body(resp *http.Response, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	return b, nil
}
