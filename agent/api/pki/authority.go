package pki

import (
	"bytes"
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/berth-node/berth/internal/atomicfile"
	"github.com/berth-node/berth/internal/disk"
)

const (
	authorityLife = 10 * 365 * 24 * time.Hour
	// MaxClientLifetime is the longest that a client certificate is valid. There is no revocation: a certificate that
	// was lost is good until it ends.
	MaxClientLifetime = 366 * 24 * time.Hour

	authorityFile = "ca.pem" // certificate and key
	// TrustFile is the file for clients and servers of the node: every authority whose certificates are good.
	TrustFile = "ca.crt"
)

// Authority is the node's own certificate authority. It is safe for concurrent use.
type Authority struct {
	dir string
	now func() time.Time

	mu      sync.Mutex
	current pair
	trusted []*x509.Certificate
	unkept  error // why they are in memory only
}

// Open reads the authority in the directory, which it makes when there is none. One that is about to end is followed by
// a new one; what the old one signed stays good as long as it says.
func Open(dir string) (*Authority, error) { return open(dir, time.Now) }

func open(dir string, now func() time.Time) (*Authority, error) {
	if err := clean(dir); err != nil && !disk.Unwritable(err) {
		return nil, err
	}
	a := &Authority{dir: dir, now: now}
	return a, a.Renew()
}

// Renew does what is due: it makes an authority when there is none or the last one is about to end, and forgets those
// that have ended. Where the disk cannot be written that lasts as long as this process, and the next call tries again
// to keep it.
func (a *Authority) Renew() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	current, trusted, ok, made := a.current, a.trusted, true, a.unkept != nil
	var err error
	if !made {
		if current, trusted, ok, err = a.read(); err != nil {
			return err
		}
	}
	if !ok || !a.now().Before(renewAt(current.cert)) {
		if ok {
			trusted = addCert(trusted, current.cert)
		}
		if current, err = a.make(); err != nil {
			return err
		}
		made = true
	}
	trusted = addCert(trusted, current.cert)
	trusted = slices.DeleteFunc(trusted, func(c *x509.Certificate) bool { return a.now().After(c.NotAfter) })
	err = a.keep(current, made, trusted)
	if err != nil && !disk.Unwritable(err) {
		return err
	}
	a.current, a.trusted, a.unkept = current, trusted, err
	return nil
}

func (a *Authority) read() (current pair, trusted []*x509.Certificate, ok bool, err error) {
	if current, ok, err = readPair(filepath.Join(a.dir, authorityFile)); err == nil {
		trusted, err = a.readTrusted()
	}
	return current, trusted, ok, err
}

// keep writes what is to outlive this process. The authority's own file is the record; that of the trusted ones follows
// from it, whenever a crash came between them.
func (a *Authority) keep(current pair, made bool, trusted []*x509.Certificate) error {
	if err := os.MkdirAll(a.dir, 0o700); err != nil {
		return fmt.Errorf("make directory of certificates: %w", err)
	}
	if made {
		data, err := current.encode()
		if err == nil {
			err = replace(filepath.Join(a.dir, authorityFile), data, 0o600)
		}
		if err != nil {
			return err
		}
	}
	data := encodeCerts(trusted...)
	if old, err := atomicfile.Read(filepath.Join(a.dir, TrustFile), maxFile); err == nil && bytes.Equal(old, data) {
		return nil
	}
	return replace(filepath.Join(a.dir, TrustFile), data, 0o644)
}

// Unkept is why the authority would be another one for the next process; nil: it would not.
func (a *Authority) Unkept() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.unkept
}

// Run renews what is due until ctx ends.
func (a *Authority) Run(ctx context.Context, log *slog.Logger) {
	for told := a.Unkept(); ; {
		wait := max(a.RenewAt().Sub(a.now()), retry)
		if told != nil {
			wait = retry
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(min(wait, longest)):
		}
		if err := a.Renew(); err != nil {
			log.Error("certificate authority is not renewed", "error", err)
		}
		told = tellUnkept(log, "certificate authority", told, a.Unkept())
	}
}

// tellUnkept tells that something begins or ceases to be in memory only.
func tellUnkept(log *slog.Logger, what string, before, now error) error {
	switch {
	case now != nil && before == nil:
		log.Error(what+" cannot be written: another one is made by the next start", "error", now)
	case now == nil && before != nil:
		log.Info(what + " is written")
	}
	return now
}

func addCert(list []*x509.Certificate, c *x509.Certificate) []*x509.Certificate {
	if slices.ContainsFunc(list, c.Equal) {
		return list
	}
	return append(list, c)
}

func (a *Authority) readTrusted() ([]*x509.Certificate, error) {
	data, err := atomicfile.Read(filepath.Join(a.dir, TrustFile), maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read trusted authorities: %w", err)
	}
	// The authority of today is in a file of its own, with its key. Without those before it who has a certificate of
	// them needs another; without a start nobody has anything.
	certs, _ := ParseCerts(data)
	return certs, nil
}

func (a *Authority) make() (pair, error) {
	key, err := newKey()
	if err != nil {
		return pair{}, err
	}
	p := pair{key: key}
	p.cert, err = sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: fmt.Sprintf("berth-ca@%d", a.now().Unix())},
		IsCA:    true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}, key.Public(), p, a.now(), authorityLife)
	return p, err
}

// RenewAt is when [Authority.Renew] has something to do.
func (a *Authority) RenewAt() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return renewAt(a.current.cert)
}

// Trusted are the authorities whose certificates are good.
func (a *Authority) Trusted() []*x509.Certificate {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.trusted)
}

// Bundle is [Authority.Trusted] as PEM.
func (a *Authority) Bundle() []byte { return encodeCerts(a.Trusted()...) }

// SignClient signs what a PEM certificate request asks for: a client whose name is its common name and whose groups are
// its organizations. Nothing else of the request is taken over. The key never leaves who made the request.
func (a *Authority) SignClient(request []byte, lifetime time.Duration) ([]byte, error) {
	block, _ := pem.Decode(request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("this is no certificate request in PEM")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err == nil {
		err = csr.CheckSignature()
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("read certificate request: %w", err)
	case csr.Subject.CommonName == "":
		return nil, errors.New("the certificate request has no common name, which is the user's name")
	case lifetime <= 0 || lifetime > MaxClientLifetime:
		return nil, fmt.Errorf("a client certificate cannot be valid for %s: more than 0 and at most %s", lifetime,
			MaxClientLifetime)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	cert, err := sign(&x509.Certificate{
		Subject:  pkix.Name{CommonName: csr.Subject.CommonName, Organization: csr.Subject.Organization},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, csr.PublicKey, a.current, a.now(), lifetime)
	if err != nil {
		return nil, err
	}
	return encodeCerts(cert), nil
}

// signServer makes a serving certificate for the names.
func (a *Authority) signServer(n Names) (pair, error) {
	key, err := newKey()
	if err != nil {
		return pair{}, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	p := pair{key: key}
	p.cert, err = sign(&x509.Certificate{
		Subject:  pkix.Name{CommonName: "system:node:" + n.Node, Organization: []string{"system:nodes"}},
		DNSNames: n.dns(), IPAddresses: n.ips(),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, key.Public(), a.current, a.now(), servingLife)
	return p, err
}

// signed says whether the authority of today has signed a certificate.
func (a *Authority) signed(c *x509.Certificate) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return c.CheckSignatureFrom(a.current.cert) == nil
}
