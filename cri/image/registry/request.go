package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/distribution/reference"
)

var (
	// ErrNotFound says that no host has it.
	ErrNotFound = errors.New("not found in the registry")
	// ErrDenied says that the registry wants other credentials, or any.
	ErrDenied = errors.New("denied by the registry")
	// ErrForbidden is an [ErrDenied] of who was let in.
	ErrForbidden = fmt.Errorf("%w: forbidden", ErrDenied)
	// ErrStalled says that nothing arrived for too long.
	ErrStalled = errors.New("registry stalled")
)

// statusError is an answer that is none.
type statusError struct {
	status int
	text   string
	after  time.Duration
}

func (e *statusError) Error() string { return e.text }

func (e *statusError) Unwrap() error {
	switch e.status {
	case http.StatusNotFound:
		return ErrNotFound
	case http.StatusUnauthorized:
		return ErrDenied
	case http.StatusForbidden:
		return ErrForbidden
	}
	return nil
}

// lieError is what no repetition makes better with the host that said it.
type lieError struct{ text string }

func (e *lieError) Error() string { return e.text }

func lie(format string, args ...any) error { return &lieError{fmt.Sprintf(format, args...)} }

// query is one request to whichever host answers it.
type query struct {
	method string
	path   string // below the repository
	accept string
	offset int64 // > 0: only what is from there to end, which some servers want to hear too
	end    int64
	needs  docker.HostCapabilities
	first  int // host to begin with, so that one that failed halfway is not the first again
}

// do asks the hosts in turn, and all of them again later while one of them may still answer. The caller closes the
// body.
func (r *Repository) do(ctx context.Context, q query) (*http.Response, error) {
	var hosts []*host
	for i := range r.hosts {
		if h := r.hosts[(i+q.first)%len(r.hosts)]; h.Capabilities.Has(q.needs) {
			hosts = append(hosts, h)
		}
	}
	if len(hosts) == 0 {
		return nil, fmt.Errorf("no host is configured for %s: %w", r.name.Name(), ErrNotFound)
	}
	for attempt := 1; ; attempt++ {
		var failed error
		var wait time.Duration
		again := false
		for _, h := range hosts {
			resp, err := r.ask(ctx, h, q)
			if err == nil {
				return resp, nil
			}
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			r.client.log.Debug("registry did not answer", "host", h.Host, "path", q.path, "error", err)
			if len(hosts) > 1 || h.mirror {
				failed = join(failed, fmt.Errorf("%s: %w", h.Host, err))
			} else {
				failed = err
			}
			more, after := retryable(err)
			again, wait = again || more, max(wait, after)
		}
		if !again || attempt >= r.client.cfg.Attempts {
			return nil, failed
		}
		if wait > r.client.cfg.MaxWait {
			return nil, fmt.Errorf("%w (to be tried again after %s)", failed, wait)
		}
		if err := r.client.pause(ctx, attempt, wait); err != nil {
			return nil, err
		}
	}
}

// join is errors.Join on one line.
func join(a, b error) error {
	if a == nil {
		return b
	}
	return fmt.Errorf("%w; %w", a, b)
}

// pause waits before the next attempt: as long as the server wants, else longer each time, and never all at once.
func (c *Client) pause(ctx context.Context, attempt int, wait time.Duration) error {
	if wait == 0 {
		wait = min(c.cfg.Backoff<<min(attempt-1, 8), 10*time.Second)
		wait += time.Duration(rand.Int64N(int64(wait)/4 + 1))
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// retryable says whether the same request may succeed later, and when the server wants it at the earliest.
func retryable(err error) (bool, time.Duration) {
	if status, ok := errors.AsType[*statusError](err); ok {
		switch status.status {
		case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests, http.StatusInternalServerError,
			http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			return true, status.after
		}
		return false, 0
	}
	if token, ok := errors.AsType[remoteerrors.ErrUnexpectedStatus](err); ok {
		return token.StatusCode == http.StatusTooManyRequests || token.StatusCode >= 500, 0
	}
	var lied *lieError
	if errors.As(err, &lied) || errors.Is(err, docker.ErrInvalidAuthorization) {
		return false, 0
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return dns.IsTemporary || dns.IsTimeout, 0
	}
	var oe *net.OpError
	if errors.As(err, &oe) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, ErrStalled) {
		return true, 0
	}
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout(), 0
}

// ask makes the request of one host, showing credentials when it wants some.
func (r *Repository) ask(ctx context.Context, h *host, q query) (*http.Response, error) {
	ctx = docker.WithScope(ctx, "repository:"+reference.Path(r.name)+":pull")
	w := watch(ctx, r.client.cfg.StallTimeout)
	var away bool
	w.ctx = context.WithValue(w.ctx, awayKey{}, &away)
	resp, err := r.send(w, h, q, h.authorizer())
	// The library's authorizer keeps a token that was revoked, so each challenge gets a new one. Only the host's own
	// challenge counts: whoever else could word one would choose the server that is shown the credentials.
	if err == nil && resp.StatusCode == http.StatusUnauthorized && h.token == "" && !away {
		drop(resp)
		fresh := h.newAuth()
		if aerr := fresh.AddResponses(w.ctx, []*http.Response{resp}); aerr != nil {
			err = fmt.Errorf("%w: %s: %w", ErrDenied, printable(resp.Status), aerr)
		} else {
			h.use(fresh)
			resp, err = r.send(w, h, q, fresh)
		}
	}
	if err == nil && resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusPartialContent {
		err = answer(resp)
	}
	if err != nil {
		err = w.cause(err)
		w.end()
		return nil, err
	}
	w.timer.Stop()
	resp.Body = &watched{ReadCloser: resp.Body, watch: w}
	return resp, nil
}

func (r *Repository) send(w *watchdog, h *host, q query, auth docker.Authorizer) (*http.Response, error) {
	u := url.URL{Scheme: h.Scheme, Host: h.Host, Path: h.Path + "/" + reference.Path(r.name) + "/" + q.path}
	if h.mirror {
		u.RawQuery = url.Values{"ns": {reference.Domain(r.name)}}.Encode()
	}
	req, err := http.NewRequestWithContext(w.ctx, q.method, u.String(), nil)
	if err != nil {
		return nil, err
	}
	for k, v := range h.Header {
		req.Header[k] = append(req.Header[k], v...)
	}
	req.Header.Set("User-Agent", r.client.cfg.UserAgent)
	req.Header.Set("Accept-Encoding", "identity")
	if q.accept != "" {
		req.Header.Set("Accept", q.accept)
	}
	if q.offset > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", q.offset, q.end-1))
	}
	if h.token != "" {
		req.Header.Set("Authorization", "Bearer "+h.token)
	} else if err := auth.Authorize(w.ctx, req); err != nil {
		h.use(nil) // it would say the same for ever
		if token, ok := errors.AsType[remoteerrors.ErrUnexpectedStatus](err); ok && token.StatusCode/100 == 4 &&
			token.StatusCode != http.StatusTooManyRequests {
			return nil, fmt.Errorf("%w: %w", ErrDenied, err)
		}
		return nil, fmt.Errorf("get a token: %w", err)
	}
	w.alive()
	return h.Client.Do(req)
}

// answer makes an error of what a registry says instead of what was asked for.
func answer(resp *http.Response) error {
	defer resp.Body.Close()
	e := &statusError{
		status: resp.StatusCode, text: printable(resp.Status), after: retryAfter(resp.Header.Get("Retry-After")),
	}
	var body struct {
		Errors []struct{ Code, Message string }
	}
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 8<<10))
	if json.Unmarshal(b, &body) == nil && len(body.Errors) > 0 {
		said := strings.TrimSuffix(strings.ToLower(body.Errors[0].Code)+": "+body.Errors[0].Message, ": ")
		e.text += ": " + printable(said)
	}
	return e
}

// printable shortens what a stranger says to one harmless line.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
	return s[:min(len(s), 300)]
}

func retryAfter(v string) time.Duration {
	if s, err := strconv.Atoi(v); err == nil {
		return min(time.Duration(max(s, 0)), 1<<20) * time.Second
	}
	if t, err := http.ParseTime(v); err == nil {
		return max(time.Until(t), 0)
	}
	return 0
}

// drop reads a short answer to its end, so that the connection can be used again.
func drop(resp *http.Response) {
	_, _ = io.CopyN(io.Discard, resp.Body, 8<<10)
	resp.Body.Close()
}

// watchdog ends a request that takes too long to bring anything worth the name: it has so long for its answer to begin,
// and then for each so many bytes.
type watchdog struct {
	ctx   context.Context
	stop  context.CancelCauseFunc
	timer *time.Timer
	limit time.Duration
	left  time.Duration // until the next bytes have to be there
	since int           // bytes read since left was whole
}

func watch(ctx context.Context, limit time.Duration) *watchdog {
	w := &watchdog{limit: limit, left: limit}
	w.ctx, w.stop = context.WithCancelCause(ctx)
	w.timer = time.AfterFunc(limit,
		func() { w.stop(fmt.Errorf("%w: not even %d bytes in %s", ErrStalled, enough, limit)) })
	return w
}

func (w *watchdog) alive() { w.timer.Reset(w.limit) }
func (w *watchdog) end()   { w.timer.Stop(); w.stop(nil) }

// reading lets the time run while read waits for the other side, and only then: who reads slowly is not the registry's
// fault. A server that sends a byte now and then must not keep a pull, and all that waits for it, for ever.
func (w *watchdog) reading(read func() (int, error)) (int, error) {
	began := time.Now()
	w.timer.Reset(w.left)
	n, err := read()
	w.timer.Stop()
	w.left = max(w.left-time.Since(began), 0)
	if w.since += n; w.since >= enough {
		w.since, w.left = 0, w.limit
	}
	return n, err
}

// cause is why err came, where that was the watchdog's doing.
func (w *watchdog) cause(err error) error {
	if c := context.Cause(w.ctx); c != nil {
		return c
	}
	return err
}

// watched is a body that is expected to move only while somebody reads it.
type watched struct {
	io.ReadCloser
	watch *watchdog
}

func (b *watched) Read(p []byte) (int, error) {
	n, err := b.watch.reading(func() (int, error) { return b.ReadCloser.Read(p) })
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.watch.cause(err)
	}
	return n, err
}

func (b *watched) Close() error {
	b.watch.end()
	return b.ReadCloser.Close()
}
