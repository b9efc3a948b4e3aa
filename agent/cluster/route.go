package cluster

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/berth-node/berth/internal/patience"
)

// drainFor is how long calls may go on over a route after another took its place. A watch is not waited for: it would
// go on with the credentials of before for hours.
const drainFor = 10 * time.Second

var errReplaced = errors.New("the credentials of the API server were replaced")

// route is a way to one API server with one set of credentials. Its connections are its own.
type route struct {
	base  *url.URL
	rt    http.RoundTripper
	token atomic.Pointer[string] // nil: none of a file
	conns connections

	plugin string // the program that has the credentials; "": none
	asked  patience.Calls

	mu      sync.Mutex
	running int
	retired bool
}

// newRoute makes a route of an access. It connects to nobody yet.
func newRoute(a *access) (*route, error) {
	r := &route{}
	cfg := rest.CopyConfig(a.config)
	// With a dialer of its own client-go's cache has no transport that somebody else would use, too, and its transports
	// ask silent connections whether they are alive (HTTP/2 pings), so that a dead one is noticed within 45 s.
	cfg.Dial = r.conns.dial
	// They are set for each request, by the settings of the client.
	cfg.QPS, cfg.Timeout, cfg.UserAgent = 0, 0, ""
	var err error
	if r.base, _, err = rest.DefaultServerUrlFor(cfg); err != nil {
		return nil, err
	}
	if r.rt, err = rest.TransportFor(cfg); err != nil {
		return nil, err
	}
	r.setToken(a.token)
	if p := a.config.ExecProvider; p != nil {
		r.plugin = "credential plugin " + p.Command
	}
	return r, nil
}

func (r *route) setToken(token string) {
	if token == "" {
		r.token.Store(nil)
		return
	}
	r.token.Store(&token)
}

// begin counts a call, before the route can be retired.
func (r *route) begin() {
	r.mu.Lock()
	r.running++
	r.mu.Unlock()
}

func (r *route) end() {
	r.mu.Lock()
	r.running--
	last := r.retired && r.running == 0
	r.mu.Unlock()
	if last {
		r.conns.close()
	}
}

// retire closes the connections as soon as the calls over them have ended.
func (r *route) retire() {
	r.mu.Lock()
	r.retired = true
	idle := r.running == 0
	r.mu.Unlock()
	if idle {
		r.conns.close()
		return
	}
	time.AfterFunc(drainFor, r.conns.close)
}

// RoundTrip implements [http.RoundTripper]: it sends a request for any server to that of the route. [route.begin] was
// called for it.
func (r *route) RoundTrip(req *http.Request) (*http.Response, error) {
	out := req.Clone(req.Context())
	out.URL.Scheme, out.URL.Host, out.Host = r.base.Scheme, r.base.Host, ""
	if prefix := strings.TrimSuffix(r.base.Path, "/"); prefix != "" {
		out.URL.Path = prefix + out.URL.Path
		if out.URL.RawPath != "" {
			out.URL.RawPath = strings.TrimSuffix(r.base.EscapedPath(), "/") + out.URL.RawPath
		}
	}
	if token := r.token.Load(); token != nil && out.Header.Get("Authorization") == "" {
		out.Header.Set("Authorization", "Bearer "+*token)
	}
	resp, err := r.send(out)
	if err != nil || isWatch(req) || resp.StatusCode == http.StatusSwitchingProtocols {
		r.end()
		return resp, err
	}
	resp.Body = &ending{ReadCloser: resp.Body, end: sync.OnceFunc(r.end)}
	return resp, nil
}

// pluginGrace is how long a request of which nobody wants the answer any more has to notice that.
const pluginGrace = time.Second

// send sends a request. client-go waits for a plugin without end, whatever the context of the request says.
func (r *route) send(req *http.Request) (*http.Response, error) {
	if r.plugin == "" {
		return r.rt.RoundTrip(req)
	}
	return patience.Ask(req.Context(), &r.asked, r.plugin, pluginGrace, func() (*http.Response, error) {
		resp, err := r.rt.RoundTrip(req)
		if err == nil && req.Context().Err() != nil { // nobody may read it
			resp.Body.Close()
			return nil, req.Context().Err()
		}
		return resp, err
	})
}

// isWatch says whether an answer has no end of its own.
func isWatch(req *http.Request) bool { return req.URL.Query().Get("watch") == "true" }

// ending tells that the answer of a call was read.
type ending struct {
	io.ReadCloser
	end func()
}

// Close implements [io.Closer].
func (e *ending) Close() error {
	defer e.end()
	return e.ReadCloser.Close()
}

// connections are those of a route.
type connections struct {
	mu     sync.Mutex
	open   map[*connection]struct{}
	closed bool
}

type connection struct {
	net.Conn
	of *connections
}

// Close implements [net.Conn].
func (c *connection) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

func (c *connections) dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second} // client-go's
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed { // by a request that was on its way when the route was closed
		conn.Close()
		return nil, errReplaced
	}
	if c.open == nil {
		c.open = map[*connection]struct{}{}
	}
	made := &connection{conn, c}
	c.open[made] = struct{}{}
	return made, nil
}

func (c *connections) close() {
	c.mu.Lock()
	c.closed = true
	open := c.open
	c.open = nil
	c.mu.Unlock()
	for conn := range open {
		conn.Conn.Close()
	}
}
