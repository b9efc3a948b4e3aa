package pki

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

const (
	servingLife = 365 * 24 * time.Hour
	servingFile = "server.pem"
)

// Names are what a node is called by its clients.
type Names struct {
	Node  string
	Hosts []string // more names and addresses
}

func (n Names) dns() []string {
	out := []string{"localhost", n.Node}
	for _, h := range n.Hosts {
		if net.ParseIP(h) == nil {
			out = append(out, h)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (n Names) ips() []net.IP {
	hosts := append([]string{"127.0.0.1", "::1"}, n.Hosts...)
	var out []net.IP
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil && !slices.ContainsFunc(out, ip.Equal) {
			out = append(out, ip)
		}
	}
	slices.SortFunc(out, func(a, b net.IP) int { return strings.Compare(a.String(), b.String()) })
	return out
}

// Serving is a serving certificate that the authority signs. It is made again when it is about to end, when the authority has
// changed, and when the node is called by other names.
type Serving struct {
	authority *Authority
	names     func() Names
	log       *slog.Logger
	current   atomic.Pointer[tls.Certificate]
}

// NewServing returns the certificate of the last start where it is still good.
func NewServing(a *Authority, names func() Names, log *slog.Logger) (*Serving, error) {
	s := &Serving{authority: a, names: names, log: log}
	return s, s.renew()
}

func (s *Serving) renew() error {
	path := filepath.Join(s.authority.dir, servingFile)
	n := s.names()
	if c := s.current.Load(); c != nil && s.good(c.Leaf, n) {
		return nil
	}
	p, ok, err := readPair(path)
	if err != nil {
		return err
	}
	if !ok || !s.good(p.cert, n) {
		if p, err = s.authority.signServer(n); err != nil {
			return err
		}
		data, err := p.encode()
		if err != nil {
			return err
		}
		if err := replace(path, data, 0o600); err != nil {
			return err
		}
	}
	s.current.Store(&tls.Certificate{Certificate: [][]byte{p.cert.Raw}, PrivateKey: p.key, Leaf: p.cert})
	return nil
}

func (s *Serving) good(c *x509.Certificate, n Names) bool {
	return s.authority.now().Before(renewAt(c)) && s.authority.signed(c) &&
		slices.Equal(c.DNSNames, n.dns()) && slices.EqualFunc(c.IPAddresses, n.ips(), net.IP.Equal)
}

// Certificate is for tls.Config.GetCertificate.
func (s *Serving) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return s.current.Load(), nil
}

// Run renews what is due until ctx ends. renamed tells that the node may be called by other names.
func (s *Serving) Run(ctx context.Context, renamed <-chan struct{}) {
	retry := time.Minute
	for {
		due := renewAt(s.current.Load().Leaf)
		if at := s.authority.RenewAt(); at.Before(due) {
			due = at
		}
		wait := max(due.Sub(s.authority.now()), retry)
		// A timer does not go on while the machine sleeps, and clocks are set: no wait is longer than a day.
		t := time.NewTimer(min(wait, 24*time.Hour))
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-renamed:
			t.Stop()
		case <-t.C:
		}
		if err := s.authority.Renew(); err != nil {
			s.log.Error("certificate authority is not renewed", "error", err)
			continue
		}
		if err := s.renew(); err != nil {
			s.log.Error("serving certificate is not renewed", "error", err)
		}
	}
}

// LoadPair reads a serving certificate and its key.
func LoadPair(certFile, keyFile string) (*tls.Certificate, error) {
	c, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("read serving certificate %s with key %s: %w", certFile, keyFile, err)
	}
	return &c, nil
}
