package client

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-node/berth/agent/api/socket"
)

// at is a client of what listens in dir, with little patience.
func at(dir string, calm, patience time.Duration) *Client {
	c := New(dir)
	c.http.Transport = answering{next: c.dial, runDir: dir, quiet: calm, patience: patience}
	return c
}

// TestNobodyAnswers asks an agent that is stopped: the kernel takes the connection, and nobody reads what comes.
func TestNobodyAnswers(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, socket.Name))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, ok := New(dir).http.Transport.(answering); !ok {
		t.Fatal("a client waits for ever")
	}
	c := at(dir, time.Millisecond, time.Millisecond)
	if _, err := c.Pods(t.Context(), ""); !errors.Is(err, ErrNoAgent) || !strings.Contains(err.Error(), dir) {
		t.Errorf("pods: %v", err)
	}
	if _, err := c.Do(t.Context(), http.MethodPost, "/images/import", nil); !errors.Is(err, ErrNoAgent) {
		t.Errorf("import: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Pods(ctx, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
}

// TestSlowAnswer has an answer that begins long after the agent was first asked whether it is there, and goes on after
// that.
func TestSlowAnswer(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, socket.Name))
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	enough := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) == 3 {
			close(enough)
		}
		w.WriteHeader(http.StatusInternalServerError) // it is there, though it is not well
	})
	mux.HandleFunc("/slow", func(w http.ResponseWriter, _ *http.Request) {
		<-enough
		w.(http.Flusher).Flush()
		_, _ = io.WriteString(w, "at last")
	})
	s := &http.Server{Handler: mux}
	go func() { _ = s.Serve(l) }()
	defer s.Close()
	resp, err := at(dir, time.Millisecond, time.Minute).Do(t.Context(), http.MethodGet, "/slow", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); string(b) != "at last" {
		t.Errorf("%q, %v", b, err)
	}
}

// TestStopsAmidst has an agent stop in the middle of an answer, and then one that only has nothing to say for a while.
func TestStopsAmidst(t *testing.T) {
	for name, stops := range map[string]bool{"stops": true, "goes on": false} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			l, err := net.Listen("unix", filepath.Join(dir, socket.Name))
			if err != nil {
				t.Fatal(err)
			}
			var asked atomic.Int32
			more, over := make(chan struct{}), make(chan struct{})
			mux := http.NewServeMux()
			mux.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {
				if stops {
					<-over
				} else if asked.Add(1) == 3 {
					close(more)
				}
			})
			mux.HandleFunc("/long", func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, "half, ")
				w.(http.Flusher).Flush()
				<-more
				_, _ = io.WriteString(w, "and the rest")
			})
			s := &http.Server{Handler: mux}
			go func() { _ = s.Serve(l) }()
			defer s.Close()
			defer close(over)
			if stops {
				defer close(more)
			}
			patience := time.Minute
			if stops {
				patience = time.Millisecond
			}
			resp, err := at(dir, time.Millisecond, patience).Do(t.Context(), http.MethodGet, "/long", nil)
			if err != nil && stops {
				return // before anything of it had come
			}
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			switch b, err := io.ReadAll(resp.Body); {
			case stops && !errors.Is(err, ErrNoAgent):
				t.Errorf("%q, %v", b, err)
			case !stops && (err != nil || string(b) != "half, and the rest"):
				t.Errorf("%q, %v", b, err)
			}
		})
	}
}
