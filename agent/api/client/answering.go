package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

// How long an answer may take to begin before the agent is asked whether it is there at all, and how long it has to say
// so. What is asked for may take longer: images are imported, and a node is pruned, before the answer begins.
const (
	quiet    = 5 * time.Second
	patience = 10 * time.Second
)

// answering is a way to the agent that ends when nobody answers at its other end. The kernel takes connections for a
// process that is stopped or stuck, too, so that they tell nothing.
type answering struct {
	next            http.RoundTripper
	runDir          string
	quiet, patience time.Duration
}

// RoundTrip implements [http.RoundTripper].
func (a answering) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	begun := make(chan struct{})
	go func() {
		if err := a.watch(ctx, begun); err != nil {
			cancel(err)
		}
	}()
	resp, err := a.next.RoundTrip(req.WithContext(ctx))
	close(begun)
	if err != nil {
		if silent := context.Cause(ctx); silent != nil && req.Context().Err() == nil {
			err = silent
		}
		cancel(nil)
		return nil, err
	}
	resp.Body = answer{resp.Body, cancel}
	return resp, nil
}

// watch returns when the answer has begun, and with an error when there is not going to be one.
func (a answering) watch(ctx context.Context, begun <-chan struct{}) error {
	timer := time.NewTimer(a.quiet)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-begun:
			return nil
		case <-timer.C:
		}
		err := a.alive(ctx)
		select {
		case <-begun: // it came meanwhile
			return nil
		default:
		}
		if err != nil {
			return err
		}
		timer.Reset(a.quiet)
	}
}

// alive asks for what is answered at once, over a connection of its own. Whatever comes, somebody is there.
func (a answering) alive(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, a.patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, host+"/healthz", nil)
	if err != nil {
		return err
	}
	resp, err := a.next.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("%w in %s: it takes connections, but has said nothing for %s (is it stopped or stuck?)", ErrNoAgent,
			a.runDir, a.quiet+a.patience)
	}
	return resp.Body.Close()
}

// answer ends what belongs to a request with its answer.
type answer struct {
	body   io.ReadCloser
	cancel context.CancelCauseFunc
}

// Read implements [io.Reader].
func (a answer) Read(p []byte) (int, error) { return a.body.Read(p) }

// Close implements [io.Closer].
func (a answer) Close() error {
	err := a.body.Close()
	a.cancel(nil)
	return err
}
