package auth

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
)

// counted is how often a chain was verified.
type counted struct {
	authenticator.Request
	n int
}

func (c *counted) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	c.n++
	return c.Request.AuthenticateRequest(r)
}

// known has certificates whose authorities and whose time the test changes.
type known struct {
	*certificates
	verifies *counted
	roots    *x509.CertPool
	time     time.Time
}

func newKnown(t *testing.T, by ...*authority) *known {
	t.Helper()
	k := &known{time: time.Now()}
	k.trust(t, by...)
	k.certificates = newCertificates(func() (x509.VerifyOptions, bool) {
		return x509.VerifyOptions{Roots: k.roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, CurrentTime: k.time}, true
	})
	k.verifies = &counted{Request: k.certificates.verify}
	k.certificates.verify, k.certificates.now = k.verifies, func() time.Time { return k.time }
	return k
}

func (k *known) trust(t *testing.T, all ...*authority) {
	t.Helper()
	k.roots = x509.NewCertPool()
	for _, a := range all {
		if !k.roots.AppendCertsFromPEM(a.pem) {
			t.Fatal("an authority is no certificate")
		}
	}
}

// comes is who a request with these certificates is, and whether its chain was verified for that.
func (k *known) comes(chain ...*x509.Certificate) (who string, verified bool) {
	r := httptest.NewRequest(http.MethodGet, "/api", nil)
	if len(chain) > 0 {
		r.TLS = &tls.ConnectionState{PeerCertificates: chain}
	}
	before := k.verifies.n
	got, ok, err := k.AuthenticateRequest(r)
	if ok && err == nil {
		who = got.User.GetName()
		got.User = nil // what one does with an answer is not the next one's
	}
	return who, k.verifies.n > before
}

// TestCertificatesAreVerifiedOnce has a chain verified once while nothing changes that it depends on, and each time
// where it is not good.
func TestCertificatesAreVerifiedOnce(t *testing.T) {
	own, other := newAuthority(t), newAuthority(t)
	k := newKnown(t, own)
	admin := own.client(t, pkix.Name{CommonName: "admin"}, k.time.Add(time.Hour))
	brief := own.client(t, pkix.Name{CommonName: "brief"}, k.time.Add(20*time.Second))
	stranger := other.client(t, pkix.Name{CommonName: "admin"}, k.time.Add(time.Hour))
	want := func(what string, chain []*x509.Certificate, who string, verified bool) {
		t.Helper()
		if is, was := k.comes(chain...); is != who || was != verified {
			t.Errorf("%s: is %q, verified %t, want %q, %t", what, is, was, who, verified)
		}
	}
	one := func(c *x509.Certificate) []*x509.Certificate { return []*x509.Certificate{c} }
	want("nobody", nil, "", false)
	want("the first", one(admin), "admin", true)
	want("the same again", one(admin), "admin", false)
	want("with another behind it", []*x509.Certificate{admin, stranger}, "admin", true)
	want("another of that name", one(stranger), "", true)
	want("it again", one(stranger), "", true)
	want("another with the first behind it", []*x509.Certificate{stranger, admin}, "", true)
	want("a brief one", one(brief), "brief", true)
	k.time = k.time.Add(19 * time.Second)
	want("a brief one, still", one(brief), "brief", false)
	k.time = k.time.Add(2 * time.Second)
	want("a brief one, over", one(brief), "", true)
	want("the first, still", one(admin), "admin", false)
	k.time = k.time.Add(certificateTime)
	want("the first, later", one(admin), "admin", true)
	k.trust(t, other)
	want("with other authorities", one(admin), "", true)
	want("their own", one(stranger), "admin", true)
	k.trust(t, own, other)
	want("with both", one(admin), "admin", true)
}
