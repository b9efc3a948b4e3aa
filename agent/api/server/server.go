// Package server serves the API: on the socket for root, and on ports, by HTTPS for those who are known and allowed.
package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"

	"github.com/berth-node/berth/agent/api"
	"github.com/berth-node/berth/agent/api/access"
	"github.com/berth-node/berth/agent/api/pki"
	"github.com/berth-node/berth/agent/api/socket"
	"github.com/berth-node/berth/agent/config"
)

// Config is what a [Server] works with.
type Config struct {
	config.Server
	RunDir    string // where the socket is
	NodeName  string
	Addresses func() []string // of the node
	Authority *pki.Authority  // nil: an API server's authority is the only one
	// Cluster is how the API server is asked who has a token and who may do what; nil: there is none.
	Cluster *rest.Config
	// Certificate is what the cluster has signed for HTTPS, or nil while it has not: then the node's own authority's
	// serves. Nil: it signs none.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	Log         *slog.Logger
}

// Server is the API as it is served to others: on the socket for root, and on ports where they are given.
type Server struct {
	cfg Config
	log *slog.Logger

	serving *pki.Serving // nil: the certificate is given by file
	certs   *pki.Files[*tls.Certificate]
	clients *pki.Files[[]*x509.Certificate]
	tokens  *pki.Files[access.Tokens]
	rules   *access.Replaceable // nil: an API server says who may do what

	parts []part
}

// part is one listener with what it serves.
type part struct {
	what     string
	listener net.Listener
	handler  http.Handler
	patience patience
}

// How long clients are waited for. Who follows a log may look at it for hours, but not who has shown nothing.
const (
	bodyPatience   = 30 * time.Second
	readerPatience = 4 * time.Hour // kubelet's
	openPatience   = time.Minute
)

// OpenAuthority opens the node's own authority, which is needed where nobody else has certificates for HTTPS.
func OpenAuthority(c config.Server, joined bool) (*pki.Authority, error) {
	if !c.Enabled || c.Port == 0 || joined && c.TLSCertFile != "" {
		return nil, nil
	}
	return pki.Open(c.CertDir)
}

// Open opens every port that is asked for, so that one that is taken is known at the start.
func Open(ctx context.Context, c Config, handlers *api.Server) (*Server, error) {
	s := &Server{cfg: c, log: c.Log}
	l, err := socket.Open(c.RunDir, c.Log)
	if err != nil {
		return nil, err
	}
	s.parts = append(s.parts, part{what: "API", listener: l, handler: handlers, patience: patience{Read: bodyPatience}})
	if c.Enabled {
		err = s.listenPorts(ctx, handlers)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *Server) close() {
	for _, p := range s.parts {
		p.listener.Close()
	}
}

func (s *Server) listenPorts(ctx context.Context, handlers *api.Server) error {
	c := &s.cfg
	open := func(what, address string, port int32, h http.Handler, wait time.Duration) error {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", config.Listen(address, port))
		if err != nil {
			return fmt.Errorf("serve %s: %w", what, err)
		}
		s.parts = append(s.parts, part{
			what: what, listener: l, handler: h,
			patience: patience{Read: bodyPatience, Write: wait},
		})
		return nil
	}
	if c.ReadOnlyPort != 0 {
		if err := open("read-only API", c.Address, c.ReadOnlyPort, handlers.Handler(api.ReadOnly), openPatience); err != nil {
			return err
		}
	}
	if c.HealthzPort != 0 {
		if err := open("healthz", c.HealthzAddress, c.HealthzPort, handlers.Handler(api.Health), openPatience); err != nil {
			return err
		}
	}
	if c.Port == 0 {
		return nil
	}
	what := api.Network
	if !c.Debugging {
		what = api.NoDebugging
	}
	guard, err := s.guard(handlers.Handler(what))
	if err != nil {
		return err
	}
	cfg, err := s.tls()
	if err != nil {
		return err
	}
	if err := open("API by HTTPS", c.Address, c.Port, guard, readerPatience); err != nil {
		return err
	}
	last := &s.parts[len(s.parts)-1]
	last.listener = tls.NewListener(last.listener, cfg)
	return nil
}

// guard lets those pass who are known and allowed.
func (s *Server) guard(next access.Routes) (http.Handler, error) {
	c := &s.cfg
	g := &access.Guard{AllowAnonymous: c.Anonymous, Next: next, Log: s.log}
	var err error
	if c.ClientCAFile != "" {
		s.clients, err = pki.NewFiles(func() ([]*x509.Certificate, error) { return readAuthorities(c.ClientCAFile) }, s.log,
			c.ClientCAFile)
		if err != nil {
			return nil, err
		}
	}
	g.Authenticators = append(g.Authenticators, access.Certificates{Roots: s.roots})
	if c.TokenFile != "" {
		s.tokens, err = pki.NewFiles(func() (access.Tokens, error) { return access.ReadTokens(c.TokenFile) }, s.log,
			c.TokenFile)
		if err != nil {
			return nil, err
		}
		g.Authenticators = append(g.Authenticators, access.TokenFile{Get: s.tokens.Get})
	}
	var hook *access.Webhook
	if c.Cluster != nil {
		if hook, err = s.webhook(); err != nil {
			return nil, err
		}
		if c.TokenWebhook {
			g.Authenticators = append(g.Authenticators, access.TokenReviews{Webhook: hook})
		}
	}
	switch {
	case c.AllowAll():
		g.Authorizer = access.AlwaysAllow{}
	case hook != nil:
		g.Authorizer = hook
	default:
		rules, err := c.Rules()
		if err != nil {
			return nil, err
		}
		s.rules = access.NewReplaceable(rules)
		g.Authorizer = s.rules
	}
	return g, nil
}

func (s *Server) webhook() (*access.Webhook, error) {
	return access.NewWebhook(access.WebhookConfig{
		API: s.cfg.Cluster, NodeName: s.cfg.NodeName, TokenTTL: s.cfg.TokenTTL, AllowedTTL: s.cfg.AllowedTTL, ForbiddenTTL: s.cfg.ForbiddenTTL,
	})
}

func readAuthorities(path string) ([]*x509.Certificate, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read --client-ca-file: %w", err)
	}
	certs, err := pki.ParseCerts(data)
	if err != nil {
		return nil, fmt.Errorf("read --client-ca-file %s: %w", path, err)
	}
	return certs, nil
}

// roots are the authorities that client certificates may be of. With an API server the node's own is not among them:
// who is an administrator is then the cluster's to say.
func (s *Server) roots() *x509.CertPool {
	var certs []*x509.Certificate
	if s.clients != nil {
		certs = append(certs, s.clients.Get()...)
	}
	if s.cfg.Authority != nil && s.cfg.Cluster == nil {
		certs = append(certs, s.cfg.Authority.Trusted()...)
	}
	if len(certs) == 0 {
		return nil
	}
	pool := x509.NewCertPool()
	for _, c := range certs {
		pool.AddCert(c)
	}
	return pool
}

func (s *Server) tls() (*tls.Config, error) {
	cfg, err := s.cfg.TLS()
	if err != nil {
		return nil, err
	}
	if s.cfg.TLSCertFile != "" {
		cert, key := s.cfg.TLSCertFile, s.cfg.TLSKeyFile
		s.certs, err = pki.NewFiles(func() (*tls.Certificate, error) { return pki.LoadPair(cert, key) }, s.log, cert, key)
		cfg.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.certs.Get(), nil }
		return cfg, err
	}
	s.serving, err = pki.NewServing(s.cfg.Authority, s.names, s.log)
	if err == nil {
		cfg.GetCertificate = s.certificate
	}
	return cfg, err
}

// certificate is the one that the cluster has signed, which its API server trusts, else that of the node.
func (s *Server) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if s.cfg.Certificate != nil {
		if c, err := s.cfg.Certificate(hello); c != nil || err != nil {
			return c, err
		}
	}
	return s.serving.Certificate(hello)
}

// names are what clients may call this node.
func (s *Server) names() pki.Names {
	n := pki.Names{Node: s.cfg.NodeName, Hosts: s.cfg.Addresses()}
	if ip := net.ParseIP(s.cfg.Address); ip != nil && !ip.IsUnspecified() {
		n.Hosts = append(n.Hosts, ip.String())
	}
	if host, err := os.Hostname(); err == nil {
		n.Hosts = append(n.Hosts, strings.ToLower(host))
	}
	return n
}

// maxHeader bounds the header of a request, in bytes: anybody on the network may send one. A command is part of the
// URL, and each of its arguments may have 128 KiB (Linux' MAX_ARG_STRLEN), so that it is as much as kubelet takes.
const maxHeader = 1 << 20

// Run serves in the group until ctx ends.
func (s *Server) Run(ctx context.Context, g *errgroup.Group) {
	quiet := slog.NewLogLogger(s.log.Handler(), slog.LevelDebug)
	for _, p := range s.parts {
		srv := &http.Server{
			Handler: p.patience.handler(p.handler), MaxHeaderBytes: maxHeader,
			ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 90 * time.Second, ErrorLog: quiet,
		}
		s.log.Info("serving "+p.what, "address", p.listener.Addr().String())
		g.Go(func() error {
			if err := srv.Serve(p.listener); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve %s: %w", p.what, err)
			}
			return nil
		})
		g.Go(func() error {
			<-ctx.Done()
			// Whoever follows a log or has a shell is cut off: waiting for them would be waiting for ever.
			return srv.Close()
		})
	}
	if s.serving != nil {
		g.Go(func() error { s.serving.Run(ctx, s.renamed(ctx)); return nil })
	}
	if s.serving == nil && s.cfg.Authority != nil {
		g.Go(func() error { s.cfg.Authority.Run(ctx, s.log); return nil })
	}
	if s.certs != nil {
		g.Go(func() error { return s.certs.Run(ctx) })
	}
	if s.clients != nil {
		g.Go(func() error { return s.clients.Run(ctx) })
	}
	if s.tokens != nil {
		g.Go(func() error { return s.tokens.Run(ctx) })
	}
}

// renamed tells when addresses of the machine come or go.
func (s *Server) renamed(ctx context.Context) <-chan struct{} {
	out := make(chan struct{}, 1)
	updates := make(chan netlink.AddrUpdate)
	if err := netlink.AddrSubscribe(updates, ctx.Done()); err != nil {
		s.log.Warn("new addresses get into the serving certificate only at the next start", "error", err)
		return out
	}
	go func() {
		for u := range updates {
			if u.Scope != unix.RT_SCOPE_UNIVERSE {
				continue // every pod has addresses of the link
			}
			select {
			case out <- struct{}{}:
			default:
			}
		}
	}()
	return out
}

// Allow takes over who may do what, where that is not an API server's to say.
func (s *Server) Allow(rules access.Rules) {
	if s.rules != nil {
		s.rules.Replace(rules)
	}
}
