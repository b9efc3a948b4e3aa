// Package pki is the certificates of a cluster, in one directory: its authority, the one of requests that the API
// server passes on, what they have signed, and the key that service account tokens are signed with.
//
// A certificate is one file with its key, replaced as a whole, so that no crash parts them. What an authority has
// signed is made again when it cannot be read or is about to end. An authority is never made again by itself: whatever
// trusts it would not trust the next one. It is rotated, with both trusted for a while.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"slices"
	"time"

	"github.com/berth-node/berth/internal/atomicfile"
	"github.com/berth-node/berth/internal/disk"
)

const (
	authorityLife = 10 * 365 * 24 * time.Hour
	leafLife      = 365 * 24 * time.Hour
	// skew is how far the clock of another machine may be behind ours.
	skew = 5 * time.Minute
	// checkEvery is how often certificates are looked at for their end, which is months away when it first matters.
	checkEvery = time.Hour
	// maxFile bounds what is read of a file. A certificate with its key takes some 2 KiB.
	maxFile = 1 << 20
)

// The authorities and certificates, by name: NAME.pem is the certificate with its key.
const (
	ClusterAuthority    = "ca"                 // signs servers and clients of the cluster
	FrontProxyAuthority = "front-proxy-ca"     // signs who may say on whose behalf a request is
	EtcdAuthority       = "etcd-ca"            // signs members of etcd, for each other
	Serving             = "apiserver"          // of the API server, for its clients
	Kubelet             = "apiserver-kubelet"  // of the API server, as a client of kubelets
	FrontProxy          = "front-proxy-client" // of the API server, as a client of API servers behind it
	Admin               = "admin"              // of who may do everything
	EtcdMember          = "etcd-member"        // of the member of etcd, for the other members and as a client of theirs
)

// ServingName is the common name of the API server's certificate.
const ServingName = "kube-apiserver"

// KubeletClient is the user that the API server is for kubelets. A default role lets it do all there, and nothing else.
const KubeletClient = "kube-apiserver-kubelet-client"

// TokenKey is the key that signs tokens of service accounts, which is no certificate and is rotated as authorities are.
const TokenKey = "sa"

func authorities() []string { return []string{ClusterAuthority, FrontProxyAuthority, EtcdAuthority} }

// Shared are the files that each member of a control plane has a copy of: the authorities, and the key of tokens.
func Shared() []string {
	var all []string
	for _, name := range authorities() {
		all = append(all, name+".pem")
	}
	return append(all, TokenKey+".pem")
}

// Options is what certificates are made for.
type Options struct {
	Hosts []string         // names and addresses that clients reach the API server by
	Log   *slog.Logger     // hears of what is made, renewed and quarantined
	Now   func() time.Time // nil: the clock
}

// leaf is a certificate that an authority signs.
type leaf struct {
	name, authority string
	subject         pkix.Name
	usage           []x509.ExtKeyUsage
}

// serves says whether the certificate is for the hosts.
func (l leaf) serves() bool { return slices.Contains(l.usage, x509.ExtKeyUsageServerAuth) }

// shown are the certificates that go with one that an authority has signed: those by which who trusts only the
// authority before it comes to trust it. Who is to join sees the authority of the server in the handshake, and knows
// it by its hash.
func (l leaf) shown(authority pair) []*x509.Certificate {
	if l.name == Serving && len(authority.chain) == 0 {
		return []*x509.Certificate{authority.cert}
	}
	return authority.chain
}

func leaves() []leaf {
	server, client := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return []leaf{
		{Serving, ClusterAuthority, pkix.Name{CommonName: ServingName}, server},
		// Not of system:masters: what names itself a kubelet and is none has a handshake with who may do this alone.
		{Kubelet, ClusterAuthority, pkix.Name{CommonName: KubeletClient}, client},
		{FrontProxy, FrontProxyAuthority, pkix.Name{CommonName: "front-proxy-client"}, client},
		{
			Admin, ClusterAuthority,
			pkix.Name{CommonName: "kubernetes-admin", Organization: []string{"system:masters"}},
			client,
		},
		{EtcdMember, EtcdAuthority, pkix.Name{CommonName: "etcd-member"}, slices.Concat(server, client)},
	}
}

// Store is the certificates of one directory. It has one writer at a time, of this process or of another.
type Store struct {
	dir  string
	opts Options
	turn turn
}

// Open reads the certificates in a directory and makes those that are missing, torn, about to end, or not for the
// hosts. It fails for an authority or a service account key that cannot be read, and says which.
func Open(dir string, opts Options) (*Store, error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	s := &Store{dir: dir, opts: opts}
	if err := atomicfile.MkdirSynced(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory of certificates: %w", err)
	}
	unlock, err := s.turn.take(s.dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := clearParts(s.dir); err != nil {
		return nil, err
	}
	known := s.files().known()
	for _, name := range authorities() {
		if err := s.ensureAuthority(name, known); err != nil {
			return nil, err
		}
	}
	if err := s.ensureServiceAccountKey(known); err != nil {
		return nil, err
	}
	if err := s.quarantine(); err != nil {
		return nil, err
	}
	for _, name := range Rotated() {
		if err := s.files().settle(name); err != nil {
			return nil, err
		}
	}
	_, err = s.renew(false)
	return s, err
}

// known says whether the directory has been one of a cluster: what is trusted is written when all authorities are made,
// and the key of tokens.
func (s files) known() bool {
	return slices.ContainsFunc(authorities(), func(name string) bool {
		_, err := os.Lstat(s.trustPath(name))
		return err == nil
	})
}

// Path is the file of a certificate with its key.
func (s *Store) Path(name string) string { return s.files().path(name) }

// TrustPath is the file of an authority's certificate alone, for who trusts it. While it is rotated it has two.
func (s *Store) TrustPath(authority string) string { return s.files().trustPath(authority) }

// Authority reads the certificate and key of an authority.
func (s *Store) Authority(name string) (*x509.Certificate, crypto.Signer, error) {
	p, err := readPair(s.Path(name))
	return p.cert, p.key, err
}

// ServiceAccountKey is what tokens of service accounts are signed with.
func (s *Store) ServiceAccountKey() (*ecdsa.PrivateKey, error) { return readSigner(s.Path(TokenKey)) }

// Renew makes those certificates again that need it, or all of them, and returns their names. Authorities stay.
func (s *Store) Renew(all bool) ([]string, error) {
	unlock, err := s.turn.take(s.dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return s.renew(all)
}

func (s *Store) renew(all bool) ([]string, error) {
	if err := s.quarantine(); err != nil {
		return nil, err
	}
	var made []string
	for _, l := range leaves() {
		authority, err := readPair(s.Path(l.authority))
		if err != nil {
			return made, unreadable(s.Path(l.authority), err)
		}
		if authority.chain, err = s.files().vouchers(l.authority, authority.cert); err != nil {
			return made, err
		}
		why, err := s.due(l, authority)
		if err != nil {
			return made, err
		}
		if why == "" && !all {
			continue
		}
		p, err := s.sign(l, authority)
		if err == nil {
			err = p.write(s.Path(l.name))
		}
		if err != nil {
			return made, fmt.Errorf("make certificate %s: %w", l.name, err)
		}
		made = append(made, l.name)
		s.opts.Log.Debug("certificate made", "name", l.name, "why", why, "until", p.cert.NotAfter)
	}
	return made, nil
}

// due says why a certificate is made, or nothing. One that cannot be read is put aside.
func (s *Store) due(l leaf, authority pair) (string, error) {
	path := s.Path(l.name)
	p, err := readPair(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "there is none", nil
	}
	if disk.Scarce(err) {
		return "", fmt.Errorf("read certificate: %w", err)
	}
	if err != nil {
		aside, aerr := putAside(path, s.opts.Now())
		if aerr != nil {
			return "", fmt.Errorf("put certificate aside: %w", aerr)
		}
		s.opts.Log.Warn("certificate cannot be read and is made again", "file", path, "aside", aside, "error", err)
		return "it cannot be read", nil
	}
	now := s.opts.Now()
	switch life := p.cert.NotAfter.Sub(p.cert.NotBefore); {
	case p.cert.CheckSignatureFrom(authority.cert) != nil:
		return "another authority signed it", nil
	case now.After(p.cert.NotAfter.Add(-life / 3)):
		return "it is about to end", nil
	case now.Before(p.cert.NotBefore):
		return "it is not valid yet", nil
	case p.cert.Subject.CommonName != l.subject.CommonName,
		!slices.Equal(p.cert.Subject.Organization, l.subject.Organization):
		return "it is of another user", nil
	case !slices.EqualFunc(p.chain, l.shown(authority), (*x509.Certificate).Equal):
		return "other certificates are to be beside it", nil
	case l.serves():
		for _, h := range s.opts.Hosts {
			if p.cert.VerifyHostname(h) != nil {
				return "it is not for " + h, nil
			}
		}
	}
	return "", nil
}

// ensureAuthority makes an authority where there is none. Of a cluster that is known, one whose key is lost is trusted
// by others: that is not for us to replace.
func (s *Store) ensureAuthority(name string, known bool) error {
	path := s.Path(name)
	p, err := readPair(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if known {
			return unreadable(path, errors.New("it is gone, and the certificates beside it tell of a cluster that trusts it"))
		}
		if p, err = s.makeAuthority(name); err != nil {
			return fmt.Errorf("make certificate authority %s: %w", name, err)
		}
	case err != nil:
		return unreadable(path, err)
	case s.opts.Now().Before(p.cert.NotBefore):
		// Nobody takes what it signs now, nor, when the clock is put right, what was good for a year from then on.
		return fmt.Errorf("read certificate authority %s: it is good from %s on, and the clock of this machine says %s: set the clock",
			path, p.cert.NotBefore.UTC().Format(time.RFC3339), s.opts.Now().UTC().Format(time.RFC3339))
	case s.opts.Now().After(p.cert.NotAfter):
		return unreadable(path, fmt.Errorf("it has ended on %s", p.cert.NotAfter.Format(time.DateOnly)))
	}
	return nil
}

func (s *Store) makeAuthority(name string) (pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, err
	}
	cert, err := sign(s.authority(commonName(name)), nil, key.Public(), key)
	if err != nil {
		return pair{}, err
	}
	p := pair{cert: cert, key: key}
	return p, p.write(s.Path(name))
}

func commonName(authority string) string {
	return map[string]string{
		ClusterAuthority: "kubernetes", FrontProxyAuthority: "kubernetes-front-proxy", EtcdAuthority: "etcd",
	}[authority]
}

// authority is what the certificate of one says.
func (s *Store) authority(common string) *x509.Certificate {
	now := s.opts.Now()
	return &x509.Certificate{
		Subject:   pkix.Name{CommonName: common},
		NotBefore: now.Add(-skew), NotAfter: now.Add(authorityLife),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageCRLSign,
		IsCA:     true, BasicConstraintsValid: true,
	}
}

func (s *Store) sign(l leaf, by pair) (pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, err
	}
	now := s.opts.Now()
	template := &x509.Certificate{
		Subject: l.subject, NotBefore: now.Add(-skew), NotAfter: now.Add(leafLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: l.usage, BasicConstraintsValid: true,
	}
	if template.NotAfter.After(by.cert.NotAfter) {
		template.NotAfter = by.cert.NotAfter
	}
	if l.serves() {
		for _, h := range s.opts.Hosts {
			if ip := net.ParseIP(h); ip != nil {
				template.IPAddresses = append(template.IPAddresses, ip)
			} else {
				template.DNSNames = append(template.DNSNames, h)
			}
		}
	}
	cert, err := sign(template, by.cert, key.Public(), by.key)
	return pair{cert, l.shown(by), key}, err
}

// ensureServiceAccountKey makes the key where there is none. Of a cluster that is known it is another one.
func (s *Store) ensureServiceAccountKey(known bool) error {
	path := s.Path(TokenKey)
	_, err := s.ServiceAccountKey()
	if err == nil {
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read key of service account tokens %s: %w; "+
			"put back a copy of the file, or remove it, with which all tokens end", path, err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make key of service account tokens: %w", err)
	}
	data, err := encodeSigner(key)
	if err != nil {
		return fmt.Errorf("make key of service account tokens: %w", err)
	}
	if known {
		s.opts.Log.Warn("key of service account tokens was gone, and another one is made: all tokens end", "file", path)
	}
	return atomicfile.WriteSynced(path, data, 0o600)
}
