package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// How long an agent may say nothing before it is asked whether it is there at all, at first and at most, and how long
// it has to say so. What is asked for may take longer: images are imported, and a node is pruned, before the answer
// begins, and what follows a log waits for its next line.
const (
	quiet     = 5 * time.Second
	mostQuiet = time.Minute
	patience  = 10 * time.Second
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
	heard := make(chan struct{}, 1)
	go func() {
		if err := a.watch(ctx, heard); err != nil {
			cancel(err)
		}
	}()
	resp, err := a.next.RoundTrip(req.WithContext(ctx))
	if err != nil {
		if silent := context.Cause(ctx); silent != nil && req.Context().Err() == nil {
			err = silent
		}
		cancel(nil)
		return nil, err
	}
	body := answer{resp.Body, req.Context(), ctx, cancel, heard}
	body.hear()
	resp.Body = body
	return resp, nil
}

// watch returns when ctx ends, and with an error when nothing more of the answer is going to come.
func (a answering) watch(ctx context.Context, heard <-chan struct{}) error {
	wait := a.quiet
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-heard:
			wait = a.quiet
			timer.Reset(wait)
			continue
		case <-timer.C:
		}
		if err := a.alive(ctx, wait); err != nil && len(heard) == 0 { // else something came meanwhile
			return err
		}
		wait = min(2*wait, mostQuiet)
		timer.Reset(wait)
	}
}

// alive asks for what is answered at once, over a connection of its own. Whatever comes, somebody is there.
func (a answering) alive(ctx context.Context, silent time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, a.patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, host+"/healthz", nil)
	if err != nil {
		return err
	}
	resp, err := a.next.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("%w in %s: it takes connections, but has said nothing for %s (is it stopped or stuck?)", ErrNoAgent,
			a.runDir, silent+a.patience)
	}
	return resp.Body.Close()
}

// answer is the body of one: it says when something of it has come, and ends what belongs to the request with itself.
type answer struct {
	body         io.ReadCloser
	asked, heeds context.Context // the request's, and that which ends when the agent is silent
	cancel       context.CancelCauseFunc
	heard        chan<- struct{}
}

func (a answer) hear() {
	select {
	case a.heard <- struct{}{}:
	default: // the watch has not yet seen the one before
	}
}

// Read implements [io.Reader].
func (a answer) Read(p []byte) (int, error) {
	n, err := a.body.Read(p)
	if n > 0 {
		a.hear()
	}
	if err != nil && !errors.Is(err, io.EOF) && a.asked.Err() == nil {
		if silent := context.Cause(a.heeds); silent != nil && !errors.Is(silent, context.Canceled) {
			err = silent
		}
	}
	return n, err
}

// Close implements [io.Closer].
func (a answer) Close() error {
	err := a.body.Close()
	a.cancel(nil)
	return err
}
