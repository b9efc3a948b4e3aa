package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
)

// profiled is for how long the processors' time is sampled, in seconds, from when many pods are bound or deleted.
const profiled = 10

// profile has the agent and the control plane say where their time goes from now on. What it returns waits for the
// profiles, which are then in files.
func (b *bench) profile(ctx context.Context, n node, phase string) (wait func()) {
	a, is := n.(*agent)
	if b.profiles == "" || !is {
		return func() {}
	}
	g := errgroup.Group{}
	g.Go(func() error {
		text, err := b.client.CoreV1().RESTClient().Get().AbsPath("/debug/pprof/profile").Param("seconds", fmt.Sprint(profiled)).DoRaw(ctx)
		if err != nil {
			return fmt.Errorf("profile the control plane: %w", err)
		}
		return os.WriteFile(filepath.Join(b.profiles, "control-"+phase+".pprof"), text, 0o644)
	})
	g.Go(func() error {
		text, err := a.ask(ctx, fmt.Sprintf("/debug/pprof/profile?seconds=%d", profiled))
		if err != nil {
			return fmt.Errorf("profile the agent: %w", err)
		}
		return os.WriteFile(filepath.Join(b.profiles, "agent-"+phase+".pprof"), text, 0o644)
	})
	return func() {
		if err := g.Wait(); err != nil {
			log.Print(err)
		}
	}
}

// heap has the agent say what lives in its memory.
func (b *bench) heap(ctx context.Context, n node) {
	a, is := n.(*agent)
	if b.profiles == "" || !is {
		return
	}
	text, err := a.ask(ctx, "/debug/pprof/heap?gc=1")
	if err == nil {
		err = os.WriteFile(filepath.Join(b.profiles, "agent-heap.pprof"), text, 0o644)
	}
	if err != nil {
		log.Print(err)
	}
}

// ask reads of the agent's API on its socket.
func (a *agent) ask(ctx context.Context, path string) ([]byte, error) {
	c := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", a.dir()+"/run/berth.sock")
	}}}
	defer c.CloseIdleConnections()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+path, nil)
	if err != nil {
		return nil, err
	}
	answer, err := c.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", answer.Status, text)
	}
	return text, err
}

// asked is how many requests to the API server the agent has counted.
func (a *agent) asked(ctx context.Context) (sum float64, err error) {
	text, err := a.ask(ctx, "/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "rest_client_requests_total{") {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]), 64)
		if err != nil {
			return 0, fmt.Errorf("read %q: %w", line, err)
		}
		sum += v
	}
	return sum, nil
}
