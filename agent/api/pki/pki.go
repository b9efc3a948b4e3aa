// Package pki keeps the certificates of the agent's API on a node without a cluster: an authority that is made on the
// first start, the serving certificate that it signs, and the client certificates that it gives to the administrator.
// All of them are renewed before they end, and all of it is in one directory.
package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"time"

	"github.com/berth-node/berth/internal/atomicfile"
)

// pair is a certificate with its key.
type pair struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// skew is how much earlier a certificate is valid than it was made, for clients whose clock is behind.
const skew = 5 * time.Minute

// maxFile bounds what is read of a file of certificates, in bytes.
const maxFile = 1 << 20

// An authority is good from then on, whenever it was made: one that was made while the machine's clock was ahead would
// be good for nothing until that time has come, and so would be what it signs.
const authorityYear = 2020

// renewAt is when a certificate is renewed: when a fifth of its lifetime is left.
func renewAt(c *x509.Certificate) time.Time {
	life := c.NotAfter.Sub(c.NotBefore)
	if c.IsCA {
		life = min(life, authorityLife)
	}
	return c.NotAfter.Add(-life / 5)
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	return key, nil
}

// sign completes the template with a serial number and its validity, and signs it.
func sign(
	template *x509.Certificate, public crypto.PublicKey, by pair, now time.Time, lifetime time.Duration,
) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make serial number: %w", err)
	}
	template.SerialNumber = serial
	template.NotBefore, template.NotAfter = now.Add(-skew), now.Add(lifetime)
	template.BasicConstraintsValid = true
	if from := time.Date(authorityYear, 1, 1, 0, 0, 0, 0, time.UTC); template.IsCA && from.Before(template.NotBefore) {
		template.NotBefore = from
	}
	parent := by.cert
	if parent == nil {
		parent = template
	} else if template.NotAfter.After(parent.NotAfter) {
		template.NotAfter = parent.NotAfter // a chain ends with the first of its certificates
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, by.key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate: %w", err)
	}
	return x509.ParseCertificate(der)
}

func encodeCerts(certs ...*x509.Certificate) []byte {
	var b bytes.Buffer
	for _, c := range certs {
		_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}) // a buffer takes everything
	}
	return b.Bytes()
}

// encode is the pair in one piece: a file that has both can be replaced by one rename, so that no crash parts them.
func (p pair) encode() ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(p.key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return append(encodeCerts(p.cert), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})...), nil
}

// decodePair reads what encode wrote.
func decodePair(data []byte) (pair, error) {
	var p pair
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		var err error
		switch block.Type {
		case "CERTIFICATE":
			p.cert, err = x509.ParseCertificate(block.Bytes)
		case "PRIVATE KEY":
			var key any
			if key, err = x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
				p.key, _ = key.(crypto.Signer)
			}
		}
		if err != nil {
			return p, err
		}
	}
	if p.cert == nil || p.key == nil {
		return p, errors.New("it has no certificate with its key")
	}
	type publicKey interface{ Equal(crypto.PublicKey) bool }
	if public, ok := p.key.Public().(publicKey); !ok || !public.Equal(p.cert.PublicKey) {
		return p, errors.New("key and certificate do not belong together")
	}
	return p, nil
}

// ParseCerts reads the certificates of PEM data.
func ParseCerts(data []byte) ([]*x509.Certificate, error) {
	var out []*x509.Certificate
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	if len(out) == 0 {
		return nil, errors.New("there is no certificate in it")
	}
	return out, nil
}

// readPair returns false when there is no file. A file that cannot be understood is an error: it may be somebody's
// authority.
func readPair(path string) (pair, bool, error) {
	data, err := atomicfile.Read(path, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return pair{}, false, nil
	}
	if err != nil {
		return pair{}, false, fmt.Errorf("read certificate: %w", err)
	}
	p, err := decodePair(data)
	if err != nil {
		return pair{}, false, fmt.Errorf("read certificate %s: %w; remove it to have a new one made", path, err)
	}
	return p, true, nil
}

// replace writes a file as a whole, and to the disk: a key that a power cut took would be missed by everybody who
// trusts it.
func replace(path string, data []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write certificate: %w", err)
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write certificate: %w", errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}

// clean removes what a crash between writing and renaming has left.
func clean(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, ".*.pem.*"))
	if err != nil {
		return err
	}
	more, err := filepath.Glob(filepath.Join(dir, ".*.crt.*"))
	if err != nil {
		return err
	}
	for _, path := range append(left, more...) {
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("remove half-written certificate: %w", err)
		}
	}
	return nil
}
