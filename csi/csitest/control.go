package csitest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// Control serves what tests ask of a driver that is a process of its own, on a socket, until ctx ends.
func (d *Driver) Control(ctx context.Context, socket string) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(d.State()) })
	mux.HandleFunc("POST /sick/{volume}", func(_ http.ResponseWriter, r *http.Request) { d.Sicken(r.PathValue("volume"), r.FormValue("why")) })
	l, err := listen(socket)
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	unhook := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer unhook()
	if err := srv.Serve(l); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve control socket: %w", err)
	}
	return nil
}

// Remote is a driver that is a process of its own, by its control socket.
type Remote struct{ Socket string }

// State is what the driver knows.
func (r Remote) State(ctx context.Context) (State, error) {
	var s State
	data, err := r.ask(ctx, "/state")
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	return s, err
}

func (r Remote) ask(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://driver"+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	t := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", r.Socket)
	}}
	resp, err := (&http.Client{Transport: t}).Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask driver: %w", err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("ask driver: %s: %s", resp.Status, data)
	}
	return data, err
}
