// Package registry reads images from registries that speak the OCI distribution protocol.
//
// Where a registry is reached, with which mirrors and certificates, is said by hosts.toml files in containerd's layout,
// and their reading and the dance of tokens is containerd's own code, so that they mean the same here. The requests are
// ours: they are repeated with back-off, given up when nothing arrives for a while, and continued where a connection
// broke.
package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
)

// Auth is what a registry is shown. A RegistryToken is sent as it is; an IdentityToken is exchanged for one.
type Auth struct {
	Username, Password string
	IdentityToken      string
	RegistryToken      string
	ServerAddress      string // the only host it is for; "" = all that the image's registry is reached by
}

// Config of a [Client].
type Config struct {
	HostsDir     string        // hosts.toml files; "" = none
	StallTimeout time.Duration // nothing arriving for so long ends a request; 0 = 1 minute
	Attempts     int           // in a row without progress; 0 = 5
	Backoff      time.Duration // before the second attempt, doubling; 0 = 250 ms
	MaxWait      time.Duration // longest Retry-After that is obeyed; 0 = 1 minute
	UserAgent    string
	Log          *slog.Logger
}

// Client makes [Repository] values.
type Client struct {
	cfg Config
	log *slog.Logger
}

// New returns a client.
func New(c Config) *Client {
	c.StallTimeout = cmp.Or(c.StallTimeout, time.Minute)
	c.Attempts = cmp.Or(c.Attempts, 5)
	c.Backoff = cmp.Or(c.Backoff, 250*time.Millisecond)
	c.MaxWait = cmp.Or(c.MaxWait, time.Minute)
	c.UserAgent = cmp.Or(c.UserAgent, "berth")
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Client{cfg: c, log: c.Log}
}

// Repository is one repository, on its registry and the mirrors of that. It is safe for concurrent use.
type Repository struct {
	client     *Client
	name       reference.Named
	hosts      []*host
	transports map[*http.Client]*http.Transport

	mu  sync.Mutex
	bad map[digest.Digest]int // how many hosts sent bad content for it
}

// host is one place that has the repository.
type host struct {
	docker.RegistryHost
	transport *http.Transport // below that of Client
	token     string          // fixed bearer token
	mirror    bool
	plain     bool // is configured to be reached without TLS, or to be when it has none
	newAuth   func() docker.Authorizer

	mu   sync.Mutex
	auth docker.Authorizer
}

// Repository finds out where the repository of name is. Close it to let its connections go.
func (c *Client) Repository(ctx context.Context, name reference.Named, auth *Auth) (*Repository, error) {
	r := &Repository{client: c, name: name, transports: map[*http.Client]*http.Transport{}}
	domain := reference.Domain(name)
	opts := config.HostOptions{
		HostDir:       c.hostDir(),
		DefaultScheme: "https",
		UpdateClient:  r.configure,
	}
	if isLoopback(domain) {
		opts.DefaultScheme = "http"
	}
	// The library logs by itself what also comes back as an error; a logger without a level says nothing.
	quiet := log.L.Dup()
	quiet.Logger = emptyOf(quiet.Logger)
	found, err := config.ConfigureHosts(log.WithLogger(ctx, quiet), opts)(domain)
	if err != nil {
		return nil, fmt.Errorf("configure registry %s: %w", domain, err)
	}
	for _, rh := range found {
		h := &host{
			RegistryHost: rh,
			mirror:       rh.Host != domain && !(domain == "docker.io" && rh.Host == "registry-1.docker.io"),
		}
		h.transport = r.transports[rh.Client]
		h.plain = rh.Scheme != "https" || rh.Client.Transport != http.RoundTripper(h.transport)
		h.newAuth = func() docker.Authorizer { return c.authorizer(h, auth) }
		if auth != nil && auth.For(rh.Host) {
			h.token = auth.RegistryToken
		}
		r.hosts = append(r.hosts, h)
	}
	return r, nil
}

func emptyOf[T any](*T) *T { return new(T) }

// Close closes connections that are not in use.
func (r *Repository) Close() {
	for _, t := range r.transports {
		t.CloseIdleConnections()
	}
}

// hostDir finds the directory of a registry. A file in it that cannot be read is an error here: the library would go on
// without it, and so to the very registry it was to keep us from.
func (c *Client) hostDir() func(string) (string, error) {
	if c.cfg.HostsDir == "" {
		return nil
	}
	find := config.HostDirFromRoot(c.cfg.HostsDir)
	return func(domain string) (string, error) {
		dir, err := find(domain)
		if err == nil && dir != "" {
			err = checkHosts(dir)
		}
		return dir, err
	}
}

// configure is called by the library for each client it makes.
func (r *Repository) configure(client *http.Client) error {
	client.CheckRedirect = checkRedirect
	if t, ok := client.Transport.(*http.Transport); ok {
		t.MaxIdleConnsPerHost = 8
		t.DisableCompression = true // a blob's digest is that of what is stored, not of what was meant
		t.ResponseHeaderTimeout = 0 // the watchdog's business
		t.MaxResponseHeaderBytes = maxHeader
		r.transports[client] = t
	}
	return nil
}

// maxHeader is how big the header of an answer may be. What redirects to large stores sign takes some KiB.
const maxHeader = 256 << 10

// awayKey finds a bool in a request's context that is set when the request is sent to another server.
type awayKey struct{}

// checkRedirect keeps secrets from where a registry sends us: its blobs are often on somebody else's servers. The
// standard library compares names only, not ports, and does not know which other headers are secret.
func checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) >= 10 {
		return errors.New("10 redirects in a row")
	}
	first := via[0].URL
	if first.Scheme == "https" && req.URL.Scheme != "https" && strings.Contains(first.Path, "/manifests/") {
		return fmt.Errorf("refused to be sent from https to %s", req.URL.Scheme)
	}
	if req.URL.Scheme != first.Scheme || req.URL.Host != first.Host {
		keep(req, "Accept", "Accept-Encoding", "Range", "User-Agent")
		if away, ok := req.Context().Value(awayKey{}).(*bool); ok {
			*away = true
		}
	}
	return nil
}

// isLoopback says that a registry is on this machine, where nobody can listen in.
func isLoopback(domain string) bool {
	name := domain
	if h, _, err := net.SplitHostPort(domain); err == nil {
		name = h
	}
	name = strings.Trim(name, "[]")
	ip := net.ParseIP(name)
	return name == "localhost" || ip != nil && ip.IsLoopback()
}

// authorizer in use.
func (h *host) authorizer() docker.Authorizer {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.auth == nil {
		h.auth = h.newAuth()
	}
	return h.auth
}

// use replaces the authorizer; nil = with an empty one.
func (h *host) use(a docker.Authorizer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.auth = a
}
