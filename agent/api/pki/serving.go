package pki

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/berth-node/berth/internal/disk"
)

const (
	servingLife = 365 * 24 * time.Hour
	servingFile = "server.pem"

	// retry is how soon after the last time something is due again, or tried again.
	retry = time.Minute
	// A timer does not go on while the machine sleeps, and clocks are set: no wait is longer.
	longest = 24 * time.Hour
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

// Serving is a serving certificate that the authority signs. It is made again when it is about to end, when the
// authority has changed, and when the node is called by other names.
type Serving struct {
	authority *Authority
	names     func() Names
	log       *slog.Logger
	current   atomic.Pointer[tls.Certificate]
	bad       chan struct{} // hears that somebody was given one that is not good by the clock
	pending   *pair         // is to be written
	told      error         // that was told of why the authority is not written
}

// NewServing returns the certificate of the last start where it is still good.
func NewServing(a *Authority, names func() Names, log *slog.Logger) (*Serving, error) {
	s := &Serving{authority: a, names: names, log: log, bad: make(chan struct{}, 1)}
	s.told = tellUnkept(log, "certificate authority", nil, a.Unkept())
	return s, s.renew()
}

func (s *Serving) renew() error {
	n := s.names()
	if c := s.current.Load(); c == nil || !s.good(c.Leaf, n) {
		if err := s.replace(n); err != nil {
			return err
		}
	}
	if s.pending == nil {
		return nil
	}
	data, err := s.pending.encode()
	if err == nil {
		err = replace(s.path(), data, 0o600)
	}
	// It is not missed: a start without it makes another one.
	if err == nil || disk.Unwritable(err) || errors.Is(err, fs.ErrNotExist) && s.authority.Unkept() != nil {
		if err == nil {
			s.pending = nil
		}
		return nil
	}
	return err
}

func (s *Serving) path() string { return filepath.Join(s.authority.dir, servingFile) }

// replace takes the certificate of the file, or another one where that is no good.
func (s *Serving) replace(n Names) error {
	p, ok, err := readPair(s.path())
	if err != nil {
		s.log.Warn("another serving certificate is made", "error", err)
	}
	if !ok || !s.good(p.cert, n) {
		if p, err = s.authority.signServer(n); err != nil {
			return err
		}
		s.pending = &p
	}
	s.current.Store(&tls.Certificate{Certificate: [][]byte{p.cert.Raw}, PrivateKey: p.key, Leaf: p.cert})
	return nil
}

func (s *Serving) good(c *x509.Certificate, n Names) bool {
	now := s.authority.now()
	return !now.Before(c.NotBefore) && now.Before(renewAt(c)) && s.authority.signed(c) &&
		slices.Equal(c.DNSNames, n.dns()) && slices.EqualFunc(c.IPAddresses, n.ips(), net.IP.Equal)
}

// Certificate is for tls.Config.GetCertificate.
func (s *Serving) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c := s.current.Load()
	// No timer rings when the clock is set. The next one who asks is given another.
	if now := s.authority.now(); now.Before(c.Leaf.NotBefore) || now.After(c.Leaf.NotAfter) {
		select {
		case s.bad <- struct{}{}:
		default:
		}
	}
	return c, nil
}

// Run renews what is due until ctx ends. renamed tells that the node may be called by other names.
func (s *Serving) Run(ctx context.Context, renamed <-chan struct{}) {
	for {
		due := renewAt(s.current.Load().Leaf)
		if at := s.authority.RenewAt(); at.Before(due) {
			due = at
		}
		wait := max(due.Sub(s.authority.now()), retry)
		if s.pending != nil || s.authority.Unkept() != nil {
			wait = retry
		}
		t := time.NewTimer(min(wait, longest))
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-renamed:
			t.Stop()
		case <-s.bad:
			t.Stop()
		case <-t.C:
		}
		if err := s.authority.Renew(); err != nil {
			s.log.Error("certificate authority is not renewed", "error", err)
			continue
		}
		s.told = tellUnkept(s.log, "certificate authority", s.told, s.authority.Unkept())
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
