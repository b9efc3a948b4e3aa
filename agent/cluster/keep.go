package cluster

import (
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

// longest is the longest wait: a timer does not go on while the machine sleeps, and clocks are set.
const longest = time.Hour

// act is how a certificate is had.
type act int

const (
	nothing   act = iota
	renew         // with the credentials that there are
	bootstrap     // with those of the bootstrap kubeconfig
)

// situation is what it depends on whether a certificate is asked for.
type situation struct {
	access    bool              // there is a kubeconfig
	cert      *x509.Certificate // of it; nil: it has none
	node      string
	rotate    bool
	bootstrap bool      // there are means
	refused   time.Time // since when the API server does not know the certificate; zero: it does
	patience  time.Duration
	now       time.Time
}

// decide says what is to be done, and when to ask again, pure.
func (s *situation) decide() (act, time.Time) {
	w := clientWant(s.node)
	switch {
	case !s.access && s.bootstrap:
		return bootstrap, s.now
	case s.cert == nil:
		return nothing, s.now.Add(longest)
	case s.now.After(s.cert.NotAfter):
		if s.bootstrap {
			return bootstrap, s.now
		}
		return nothing, s.now.Add(longest)
	case !s.refused.IsZero() && s.bootstrap:
		if at := s.refused.Add(s.patience); s.now.Before(at) {
			return nothing, at
		}
		return bootstrap, s.now
	case !s.rotate:
		return nothing, s.cert.NotAfter.Add(time.Second)
	case s.cert.Subject.CommonName != w.user(), !s.now.Before(renewAt(s.cert)):
		return renew, s.now
	}
	return nothing, renewAt(s.cert)
}

// renewAt is when 70 to 90 % of a certificate's life are over. Where in between follows from the certificate, so that a
// cluster that was made in one day does not ask on one day, and a start does not ask earlier or later.
func renewAt(c *x509.Certificate) time.Time {
	sum := sha256.Sum256(c.Raw)
	part := float64(binary.BigEndian.Uint32(sum[:])) / (1 << 32)
	return c.NotBefore.Add(time.Duration(float64(c.NotAfter.Sub(c.NotBefore)) * (0.7 + 0.2*part)))
}

func (m *member) decide() (act, time.Time) {
	refused := m.standing.refused()
	m.mu.Lock()
	defer m.mu.Unlock()
	s := situation{
		access: m.taken.access != nil, node: m.cfg.NodeName, rotate: m.cfg.Rotate, bootstrap: m.cfg.BootstrapKubeconfig != "",
		refused: refused, patience: m.pauses.refused, now: m.now(),
	}
	if m.taken.pair != nil {
		s.cert = m.taken.pair.Leaf
	}
	return s.decide()
}

// keep asks for certificates whenever one is needed, until ctx ends.
func (m *member) keep(ctx context.Context) {
	var tries tries
	for ctx.Err() == nil {
		select {
		case <-m.changed: // what is decided now knows it
		default:
		}
		what, at := m.decide()
		if what == nothing {
			tries.reset()
			m.standing.set(func(f *facts) { f.asking, f.about = "", "" })
			m.wait(ctx, at.Sub(m.now()))
			continue
		}
		attempt, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() { // what the attempt is made with was replaced: the next one finds the same request
			defer close(done)
			select {
			case <-attempt.Done():
			case <-m.changed:
				cancel()
			}
		}()
		err := m.ask(attempt, what)
		replaced := err != nil && attempt.Err() != nil
		cancel()
		<-done
		if err == nil {
			tries.succeeded(ctx, m.pauses)
		}
		if err == nil || replaced {
			continue
		}
		if tries.another(err) {
			m.log.Error("client certificate was not had, and is asked for again later", "error", clip(err.Error()))
		}
		m.standing.set(func(f *facts) {
			f.about = clip(err.Error())
			if errors.Is(err, errDenied) {
				f.asking = Denied
			} else if f.asking == Denied {
				f.asking = Requesting
			}
		})
		m.wait(ctx, tries.pause(m.pauses, err))
	}
}

// wait waits until there may be something else to do.
func (m *member) wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(min(max(d, 0), longest))
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
		m.standing.state() // the clock may say that the certificate has ended
	case <-m.changed:
	case <-m.standing.refuse:
	}
}

// badCertificateError says that the API server has answered with a certificate that is no good.
type badCertificateError struct{ err error }

// Error implements error.
func (e *badCertificateError) Error() string { return e.err.Error() }

// Unwrap is for package errors.
func (e *badCertificateError) Unwrap() error { return e.err }

// ask has another client certificate.
func (m *member) ask(ctx context.Context, what act) error {
	m.standing.set(func(f *facts) {
		if f.asking == "" {
			f.asking, f.about = Requesting, "a client certificate is asked for"
		}
	})
	client, base := m.client, m.inUse()
	if what == bootstrap {
		boot, _, err := readAccess(m.cfg.BootstrapKubeconfig)
		if err != nil {
			return fmt.Errorf("bootstrap: %w", err)
		}
		r, err := newRoute(boot)
		if err != nil {
			return fmt.Errorf("bootstrap: %w", err)
		}
		defer r.conns.close()
		if client, err = NewClient(m.settings(alone{r})); err != nil {
			return err
		}
		if pair := m.halfDone(); pair != nil {
			return m.join(boot, pair)
		}
		base = boot
		m.standing.set(func(f *facts) {
			if !f.usable {
				f.server = boot.config.Host
			}
		})
	}
	i := issue{
		store: m.store, want: clientWant(m.cfg.NodeName), client: client, now: m.now,
		waits: func(name string) {
			m.standing.set(func(f *facts) {
				f.asking, f.about = WaitingApproval, "certificate request "+name+" waits for approval: kubectl certificate approve "+name
			})
		},
		prove: func(ctx context.Context, pair []byte, name string) error { return m.prove(ctx, base, pair, name) },
	}
	pair, err := i.run(ctx)
	if what == bootstrap && apierrors.IsUnauthorized(err) {
		return fmt.Errorf("the token of %s has ended, or the API server does not know it: %w", m.cfg.BootstrapKubeconfig, err)
	}
	if err != nil {
		return err
	}
	if what == bootstrap {
		return m.join(base, pair)
	}
	return m.adopt(pair)
}

// adopt has the API server asked with a certificate that was had.
func (m *member) adopt(pair *tls.Certificate) error {
	m.take()
	m.mu.Lock()
	used := m.taken.pair != nil && m.taken.pair.Leaf.Equal(pair.Leaf)
	m.mu.Unlock()
	if !used { // else another would be asked for at once, and so on
		return fmt.Errorf("use client certificate %s: the kubeconfig has another that is newer by its file's time", m.store.currentPath())
	}
	return m.store.forget()
}

func (m *member) inUse() *access {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.taken.access
}

// alone is a route that is no link's.
type alone struct{ *route }

// RoundTrip implements [http.RoundTripper].
func (a alone) RoundTrip(req *http.Request) (*http.Response, error) {
	a.begin()
	return a.route.RoundTrip(req)
}

// halfDone is the certificate that this process' predecessor had when it was killed before it wrote the kubeconfig: the
// pending key is removed last.
func (m *member) halfDone() *tls.Certificate {
	pair, err := m.store.current()
	key := m.store.found()
	w := clientWant(m.cfg.NodeName)
	if err != nil || pair == nil || key == nil || !sameKey(key, &pair.Certificate) || w.satisfied(pair.Leaf) != nil ||
		m.now().After(pair.Leaf.NotAfter) {
		return nil
	}
	return &pair.Certificate
}

func sameKey(key crypto.Signer, pair *tls.Certificate) bool {
	type public interface{ Equal(crypto.PublicKey) bool }
	p, ok := key.Public().(public)
	return ok && p.Equal(pair.Leaf.PublicKey)
}

// join makes the kubeconfig of a certificate that was had.
func (m *member) join(boot *access, pair *tls.Certificate) error {
	if err := m.writeKubeconfig(boot); err != nil {
		return err
	}
	return m.adopt(pair)
}

// proofWithin bounds the question whether a certificate is good.
const proofWithin = 10 * time.Second

// prove asks the API server with a new certificate, before it takes the place of one that may be better: what signs is
// not what the API server trusts in a cluster whose authorities were exchanged one after the other.
func (m *member) prove(ctx context.Context, base *access, pair []byte, name string) error {
	only := base.with(pair)
	only.token = ""
	only.config.BearerToken, only.config.Username, only.config.Password, only.config.ExecProvider = "", "", "", nil
	r, err := newRoute(only)
	if err != nil {
		return err
	}
	defer r.conns.close()
	client, err := NewClient(m.settings(alone{r}))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, proofWithin)
	defer cancel()
	err = client.Get(ctx, requests, types.NamespacedName{Name: name}, &certificatesv1.CertificateSigningRequest{})
	if apierrors.IsUnauthorized(err) {
		return &badCertificateError{errors.New("the API server does not know the certificate that its signer has signed")}
	}
	return nil // whatever else there is, it is not for the certificate
}
