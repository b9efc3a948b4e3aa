package server

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-node/berth/agent/api/socket"
)

// TestSocketIsMadeAgain: commands reach the agent after somebody has removed its socket, and requests that go on are
// not cut.
func TestSocketIsMadeAgain(t *testing.T) {
	dir := t.TempDir()
	l, err := socket.Open(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	free := make(chan struct{})
	s := &Server{log: slog.New(slog.DiscardHandler), parts: []part{{
		what: "API", listener: l, handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/long" {
				w.WriteHeader(http.StatusOK)
				http.NewResponseController(w).Flush()
				<-free
			}
			_, _ = io.WriteString(w, "here")
		}),
	}}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	g := &errgroup.Group{}
	s.Run(ctx, g)
	path := filepath.Join(dir, socket.Name)
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
	}}
	ask := func(what string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://berth/"+what, nil)
		if err != nil {
			return nil, err
		}
		return client.Do(req)
	}
	long, err := ask("long")
	if err != nil {
		t.Fatal(err)
	}
	defer long.Body.Close()
	for what, remove := range map[string]func() error{
		"removed":  func() error { return os.Remove(path) },
		"replaced": func() error { return errors.Join(os.WriteFile(path+".x", nil, 0o600), os.Rename(path+".x", path)) },
	} {
		for range 5 {
			if err := remove(); err != nil {
				t.Fatal(err)
			}
			var got *http.Response
			for deadline := time.Now().Add(time.Minute); got == nil; {
				if got, err = ask(""); err != nil && time.Now().After(deadline) {
					t.Fatalf("%s: %v", what, err)
				}
				time.Sleep(time.Millisecond)
			}
			got.Body.Close()
			info, err := os.Stat(path)
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if info.Mode().Perm() != 0o600 {
				t.Errorf("%s: mode %v", what, info.Mode())
			}
		}
	}
	close(free)
	if b, err := io.ReadAll(long.Body); err != nil || string(b) != "here" {
		t.Errorf("a request that was on its way: %q, %v", b, err)
	}
	cancel()
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}
