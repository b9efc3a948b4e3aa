package client

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

// SignCertificate has the node's authority sign a certificate request in PEM. It returns the certificate and the
// authorities by which the node is known, in PEM.
func (c *Client) SignCertificate(
	ctx context.Context, request []byte, lifetime time.Duration,
) (cert, authorities []byte, err error) {
	resp, err := c.send(ctx, http.MethodPost, "/certificates", values("ttl", lifetime.String()), bytes.NewReader(request))
	if cert, err = body(resp, err); err != nil {
		return nil, nil, err
	}
	authorities, err = body(c.Do(ctx, http.MethodGet, "/certificates/ca", nil))
	return cert, authorities, err
}

// maxCertificates is how many bytes an answer may have: a certificate has some thousand.
const maxCertificates = 1 << 20

func body(resp *http.Response, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxCertificates+1))
	if err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	if len(b) > maxCertificates {
		return nil, fmt.Errorf("read answer: it has more than %d bytes", maxCertificates)
	}
	return b, nil
}
