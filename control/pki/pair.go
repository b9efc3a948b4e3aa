package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/berth-node/berth/internal/atomicfile"
)

// pair is a certificate with its key. The chain is what is shown beside it, to who does not know its issuer.
type pair struct {
	cert  *x509.Certificate
	chain []*x509.Certificate
	key   *ecdsa.PrivateKey
}

// maxChain bounds how many certificates a file may have beside the first.
const maxChain = 8

func readPair(path string) (pair, error) {
	data, err := readFile(path)
	if err != nil {
		return pair{}, err
	}
	return parsePair(data)
}

func parsePair(data []byte) (pair, error) {
	var p pair
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" || len(p.chain) == maxChain {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return pair{}, fmt.Errorf("parse certificate: %w", err)
		}
		if p.cert == nil {
			p.cert = cert
		} else {
			p.chain = append(p.chain, cert)
		}
	}
	if p.cert == nil {
		return pair{}, errors.New("parse certificate: there is no block CERTIFICATE")
	}
	key, err := parseKey(data)
	if err != nil {
		return pair{}, err
	}
	if public, ok := p.cert.PublicKey.(*ecdsa.PublicKey); !ok || !public.Equal(key.Public()) {
		return pair{}, errors.New("parse certificate: its key is another one's")
	}
	// A bit that has flipped in what is signed leaves a certificate that parses, and that nobody takes.
	if p.cert.IsCA {
		if err := p.cert.CheckSignatureFrom(p.cert); err != nil {
			return pair{}, fmt.Errorf("check certificate: %w", err)
		}
	}
	p.key = key
	return p, nil
}

func parseKey(data []byte) (*ecdsa.PrivateKey, error) {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "EC PRIVATE KEY" {
			continue
		}
		key, err := x509.ParseECPrivateKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("parse key: %w", err)
		}
		return key, nil
	}
	return nil, errors.New("parse key: there is no block EC PRIVATE KEY")
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

// encodeSigner has the public key beside the private one, so that a bit that has flipped is seen: any number is a
// private key.
func encodeSigner(key *ecdsa.PrivateKey) ([]byte, error) {
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, err
	}
	private, err := encodeKey(key)
	return slices.Concat(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), private), err
}

func parseSigner(data []byte) (*ecdsa.PrivateKey, error) {
	key, err := parseKey(data)
	if err != nil {
		return nil, err
	}
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "PUBLIC KEY" {
			continue
		}
		public, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("parse key: %w", err)
		}
		if p, ok := public.(*ecdsa.PublicKey); !ok || !p.Equal(key.Public()) {
			return nil, errors.New("parse key: its public key is another one's")
		}
		return key, nil
	}
	return nil, errors.New("parse key: there is no block PUBLIC KEY")
}

func (p pair) write(path string) error {
	key, err := encodeKey(p.key)
	if err != nil {
		return err
	}
	return atomicfile.WriteSynced(path, slices.Concat(encodeCert(p.cert), encodeCerts(p.chain), key), 0o600)
}

func encodeCert(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

func encodeCerts(all []*x509.Certificate) []byte {
	var out []byte
	for _, c := range all {
		out = append(out, encodeCert(c)...)
	}
	return out
}

func parseCerts(data []byte) ([]*x509.Certificate, error) {
	var all []*x509.Certificate
	block, rest := pem.Decode(data)
	for ; block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("parse certificate: %w", err)
		}
		all = append(all, c)
	}
	if len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("parse certificates: it does not end with one")
	}
	return all, nil
}

func readSigner(path string) (*ecdsa.PrivateKey, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, err
	}
	return parseSigner(data)
}

// sign makes a certificate. Without a parent it signs itself.
func sign(template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return nil, err
	}
	id := sha256.Sum256(der)
	template.SubjectKeyId = id[:20]
	if parent == nil {
		parent = template
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(raw)
}

func readFile(path string) ([]byte, error) { return atomicfile.Read(path, maxFile) }

// SelfSigned makes a certificate that nobody else signs and that no file keeps, for a server that only this process
// calls: PEM of the certificate and of its key.
func SelfSigned(host string) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make certificate of %s: %w", host, err)
	}
	now := time.Now()
	c, err := sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
		NotBefore: now.Add(-skew), NotAfter: now.Add(authorityLife),
		KeyUsage:    x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IsCA: true, BasicConstraintsValid: true,
	}, nil, private.Public(), private)
	if err != nil {
		return nil, nil, fmt.Errorf("make certificate of %s: %w", host, err)
	}
	key, err = encodeKey(private)
	return encodeCert(c), key, err
}
