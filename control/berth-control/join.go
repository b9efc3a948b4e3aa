package main

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-node/berth/control/etcd"
	"github.com/berth-node/berth/internal/atomicfile"
	"github.com/berth-node/berth/internal/commandline"
)

// joinTimeout bounds each question to the member that is joined.
const joinTimeout = 30 * time.Second

// A member hears of a token, and of what its holder may do, by watches: hearTimeout is for how long it may not know of
// one that was made a moment ago, and hearEvery how often it is asked meanwhile.
const (
	hearTimeout = 5 * time.Second
	hearEvery   = 250 * time.Millisecond
)

// joinFlags are the flags of join.
type joinFlags struct {
	token, hash, key string
	member           member
}

func newJoin(d *data) *cobra.Command {
	f := &joinFlags{}
	c := &cobra.Command{
		Use: "join HOST:PORT", Short: "Have this machine be a further member of a control plane", Args: cobra.ExactArgs(1),
		Long: `Have this machine be a further member of a control plane.

It makes the data directory, with the authorities and keys that all members share. Then run berth-control serve, with
the flags of the other members: it gets all objects from them, and takes part in elections from then on. The whole
command is printed by berth-control token create --member on a member that serves with --peer-address. It may be run
again until it has succeeded.`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := join(c.Context(), *d, args[0], f); err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "%s is that of a member of the cluster at %s.\nNext: berth-control serve --data-dir %s\n", d.dir, args[0], d.dir)
			return nil
		},
	}
	p := c.Flags()
	p.StringVar(&f.token, "token", "", "the token that token create --member has made")
	p.StringVar(&f.hash, "discovery-token-ca-cert-hash", "", "hash of the key of the cluster's authority, sha256:HEX")
	p.StringVar(&f.key, "certificate-key", "", "the key that opens what members share")
	f.member.bind(p, "address of this machine by which the other members reach it; the one that it reaches them from, if empty")
	for _, name := range []string{"token", "discovery-token-ca-cert-hash", "certificate-key"} {
		_ = c.MarkFlagRequired(name) // it is a flag
	}
	return c
}

func join(ctx context.Context, d data, server string, f *joinFlags) error {
	key, err := parseSealKey(f.key)
	if err != nil {
		return err
	}
	unlock, err := d.take()
	if err != nil {
		return err
	}
	defer unlock()
	if err := d.empty(); err != nil {
		return err
	}
	authority, local, err := discover(ctx, server, f.hash)
	if err != nil {
		return err
	}
	b, err := fetch(ctx, server, authority, f.token, key)
	if err != nil {
		return err
	}
	m := f.member
	if m.Address == "" {
		m.Address = local
	}
	m.Name, m.Join, m.Joining = etcd.FirstName+"-"+letters(8), b.Etcd, true
	// From here on a start would find authorities that are not all there, and must not make others.
	if err := d.writeMember(m); err != nil {
		return err
	}
	// And none that has lost the record of its place may begin a cluster of its own with them.
	if err := etcd.Remember(d.begun()); err != nil {
		return err
	}
	if err := b.unpack(d.pki()); err != nil {
		return err
	}
	m.Joining = false
	return d.writeMember(m)
}

// empty says whether a directory may become that of a member: it is nobody's yet, or join has not come to its end.
func (d data) empty() error {
	m, err := d.readMember()
	if err != nil || m.Joining {
		return err
	}
	for _, path := range []string{d.member(), d.authority(), d.etcd()} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("join cluster: %s is there already: it is a member's, who has only to serve; "+
				"another data directory, or none, becomes a new one", path)
		}
	}
	return nil
}

// discover connects to a server that nothing is known of but a hash, and returns the authority that has it, in PEM, and
// the address of this machine that it was reached from. The server shows its authority beside its certificate.
func discover(ctx context.Context, server, hash string) ([]byte, string, error) {
	want, err := hex.DecodeString(strings.TrimPrefix(hash, "sha256:"))
	if err != nil || len(want) != sha256.Size {
		return nil, "", commandline.Usagef("read --discovery-token-ca-cert-hash %q: it is sha256: and %d letters of 0-9 and a-f", hash, 2*sha256.Size)
	}
	host, _, err := net.SplitHostPort(server)
	if err != nil {
		return nil, "", commandline.Usagef("read address %q of a member: it is HOST:PORT: %w", server, err)
	}
	var authority *x509.Certificate
	dialer := &tls.Dialer{Config: &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: host,
		InsecureSkipVerify: true, // VerifyConnection verifies, with the authority that has the hash
		VerifyConnection: func(s tls.ConnectionState) error {
			authority, err = verify(s.PeerCertificates, host, want)
			return err
		},
	}}
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	conn, err := dialer.DialContext(ctx, "tcp", server)
	if err != nil {
		return nil, "", fmt.Errorf("find cluster at %s: %w", server, err)
	}
	defer conn.Close()
	local := conn.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().String()
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.Raw}), local, nil
}

// verify finds the certificate whose key has a hash, and has it vouch for the first one.
func verify(shown []*x509.Certificate, host string, want []byte) (*x509.Certificate, error) {
	for _, c := range shown {
		sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
		if subtle.ConstantTimeCompare(sum[:], want) != 1 {
			continue
		}
		roots, between := x509.NewCertPool(), x509.NewCertPool()
		roots.AddCert(c)
		for _, other := range shown[1:] {
			between.AddCert(other) // in a rotation the authority of the hash vouches for the one that has signed
		}
		_, err := shown[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, DNSName: host})
		return c, err
	}
	return nil, errors.New("it is not the cluster whose hash was given: none of the certificates that it shows has it")
}

// fetch gets what members share.
func fetch(ctx context.Context, server string, authority []byte, token string, key sealKey) (bundle, error) {
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: "https://" + server, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: authority}, Timeout: joinTimeout,
	})
	if err != nil {
		return bundle{}, fmt.Errorf("make client: %w", err)
	}
	id, _, _ := strings.Cut(token, ".")
	var secret *corev1.Secret
	for late := time.Now().Add(hearTimeout); ; {
		secret, err = client.CoreV1().Secrets(metav1.NamespaceSystem).Get(ctx, keysName(id), metav1.GetOptions{})
		if !apierrors.IsUnauthorized(err) && !apierrors.IsForbidden(err) || time.Now().After(late) {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(hearEvery):
		}
	}
	if err != nil {
		return bundle{}, fmt.Errorf("get what members share: %w; a token of token create --member may, for as long as it is good", err)
	}
	return key.open(secret.Data[keysField], id)
}

// authorityHash is by what a machine that is to join knows the cluster.
func authorityHash(d data) (string, error) {
	text, err := atomicfile.Read(d.trust(), maxFile)
	if err != nil {
		return "", fmt.Errorf("read certificate authority: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return "", errors.New("read certificate authority: there is no certificate")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return "", fmt.Errorf("read certificate authority: %w", err)
	}
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}
