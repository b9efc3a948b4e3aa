package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// agentPatience is how long the agent may take to tell its pods.
const agentPatience = 5 * time.Second

// fromAgent asks the agent's local API.
func (l Live) fromAgent(ctx context.Context, parse func([]byte) ([]corev1.Pod, error)) ([]corev1.Pod, error) {
	if l.RunDir == "" {
		return nil, os.ErrNotExist
	}
	socket := filepath.Join(l.RunDir, "berth.sock")
	if _, err := os.Stat(socket); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(l.Patience, agentPatience))
	defer cancel()
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://berth/pods", nil)
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("agent answers %s", resp.Status)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxCapture))
	if err != nil {
		return nil, err
	}
	return parse(data)
}

func isRefused(err error) bool {
	_, ok := errors.AsType[*net.OpError](err)
	return ok
}
