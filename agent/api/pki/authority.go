package pki

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

const (
	authorityLife = 10 * 365 * 24 * time.Hour
	// MaxClientLife is the longest that a client certificate is valid. There is no revocation: a certificate that was lost is good
	// until it ends.
	MaxClientLife = 366 * 24 * time.Hour

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
}

// Open reads the authority in the directory, which it makes when there is none. One that is about to end is followed by a new
// one; what the old one signed stays good as long as it says.
func Open(dir string) (*Authority, error) { return open(dir, time.Now) }

func open(dir string, now func() time.Time) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory of certificates: %w", err)
	}
	if err := clean(dir); err != nil {
		return nil, err
	}
	a := &Authority{dir: dir, now: now}
	return a, a.Renew()
}

// Renew does what is due: it makes an authority when there is none or the last one is about to end, and forgets those that have
// ended.
func (a *Authority) Renew() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	path := filepath.Join(a.dir, authorityFile)
	current, ok, err := readPair(path)
	if err != nil {
		return err
	}
	trusted, err := a.readTrusted()
	if err != nil {
		return err
	}
	if !ok || !a.now().Before(renewAt(current.cert)) {
		if ok {
			trusted = addCert(trusted, current.cert)
		}
		if current, err = a.make(); err != nil {
			return err
		}
		data, err := current.encode()
		if err != nil {
			return err
		}
		if err := replace(path, data, 0o600); err != nil {
			return err
		}
	}
	// The authority's own file is the record; that of the trusted ones follows from it, whenever a crash came between them.
	trusted = addCert(trusted, current.cert)
	trusted = slices.DeleteFunc(trusted, func(c *x509.Certificate) bool { return a.now().After(c.NotAfter) })
	data := encodeCerts(trusted...)
	if old, err := os.ReadFile(filepath.Join(a.dir, TrustFile)); err != nil || !bytes.Equal(old, data) {
		if err := replace(filepath.Join(a.dir, TrustFile), data, 0o644); err != nil {
			return err
		}
	}
	a.current, a.trusted = current, trusted
	return nil
}

func addCert(list []*x509.Certificate, c *x509.Certificate) []*x509.Certificate {
	if slices.ContainsFunc(list, c.Equal) {
		return list
	}
	return append(list, c)
}

func (a *Authority) readTrusted() ([]*x509.Certificate, error) {
	data, err := os.ReadFile(filepath.Join(a.dir, TrustFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read trusted authorities: %w", err)
	}
	certs, err := ParseCerts(data)
	if err != nil {
		return nil, fmt.Errorf("read trusted authorities %s: %w", filepath.Join(a.dir, TrustFile), err)
	}
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

// SignClient signs what a PEM certificate request asks for: a client whose name is its common name and whose groups are its
// organizations. Nothing else of the request is taken over. The key never leaves who made the request.
func (a *Authority) SignClient(request []byte, life time.Duration) ([]byte, error) {
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
	case life <= 0 || life > MaxClientLife:
		return nil, fmt.Errorf("a client certificate cannot be valid for %s: more than 0 and at most %s", life, MaxClientLife)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	cert, err := sign(&x509.Certificate{
		Subject:  pkix.Name{CommonName: csr.Subject.CommonName, Organization: csr.Subject.Organization},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, csr.PublicKey, a.current, a.now(), life)
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
