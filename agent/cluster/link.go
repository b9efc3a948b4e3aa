package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// ErrNotJoined is the error of calls while there are no credentials for the API server.
var ErrNotJoined = errors.New("the node has not joined its cluster")

// link is the transport of all clients of the API server: each request goes over the route of the moment.
type link struct {
	// seen is called with what became of each request over the route of the moment. What an old one has to say would be
	// taken for the new one's.
	seen     func(status int, err error)
	observer Observer // nil: nobody counts

	mu    sync.Mutex
	route *route // nil: there are no credentials
	why   error  // of that
	made  chan struct{}
}

func newLink(seen func(int, error), o Observer) *link {
	return &link{seen: seen, observer: o, made: make(chan struct{})}
}

// observe tells of a request that has been answered, or has failed. A watch goes on from there, so that what it takes
// says nothing.
func (l *link) observe(req *http.Request, host string, resp *http.Response, began time.Time) {
	if l.observer == nil {
		return
	}
	code, took := "<error>", time.Since(began)
	if resp != nil {
		code = strconv.Itoa(resp.StatusCode)
	}
	if isWatch(req) {
		took = 0
	}
	l.observer.Requested(req.Method, host, code, took)
}

// take has all requests from now on go over r. The connections of the route before are closed, so that watches begin
// anew with what is good now. taken is called before anything is seen of r, and after all that is seen of the other.
func (l *link) take(r *route, taken func()) {
	l.mu.Lock()
	old := l.route
	l.route = r
	taken()
	if old == nil {
		close(l.made)
	}
	l.mu.Unlock()
	if old != nil {
		old.retire()
	}
}

// lacks says why there is no route.
func (l *link) lacks(why error) {
	l.mu.Lock()
	l.why = why
	l.mu.Unlock()
}

// begin returns the route of the moment with a call that has begun, or why there is none.
func (l *link) begin() (*route, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.route == nil {
		if l.why == nil {
			return nil, ErrNotJoined
		}
		return nil, fmt.Errorf("%w: %w", ErrNotJoined, l.why)
	}
	l.route.begin()
	return l.route, nil
}

// ready waits for a route.
func (l *link) ready(ctx context.Context) error {
	select {
	case <-l.made:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	why := l.why
	l.mu.Unlock()
	if why == nil {
		why = ctx.Err()
	}
	return fmt.Errorf("%w: %w", ErrNotJoined, why)
}

// RoundTrip implements [http.RoundTripper].
func (l *link) RoundTrip(req *http.Request) (*http.Response, error) {
	r, err := l.begin()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	resp, err := r.RoundTrip(req)
	l.observe(req, r.base.Host, resp, began)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case r != l.route:
	case err == nil:
		l.seen(resp.StatusCode, nil)
	case !errors.Is(req.Context().Err(), context.Canceled): // else it says nothing of the server
		l.seen(0, err)
	}
	return resp, err
}
