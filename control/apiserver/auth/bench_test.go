package auth

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// BenchmarkCredentials is what it takes to know who comes, of one who was here before and of one who was not.
func BenchmarkCredentials(b *testing.B) {
	own := newAuthority(b)
	r := httptest.NewRequest(http.MethodGet, "/api", nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{
		own.client(b, pkix.Name{CommonName: "admin"}, time.Now().Add(time.Hour)),
	}}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(own.pem)
	options := x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	c := newCertificates(func() (x509.VerifyOptions, bool) { return options, true })
	key := newKey(b)
	of, err := newKeys([]any{key.Public()})
	if err != nil {
		b.Fatal(err)
	}
	signs, err := newSigner(issuer, key)
	if err != nil {
		b.Fatal(err)
	}
	claims, err := Claims(&corev1.ServiceAccount{ObjectMeta: meta("ns", "robot")}, Bindings{}, []string{issuer}, 3600, 0, time.Now())
	if err != nil {
		b.Fatal(err)
	}
	token, err := signs.Generate(b.Context(), claims)
	if err != nil {
		b.Fatal(err)
	}
	a := &tokenAuthenticator{issuer: issuer, keys: of, signed: newSignedTokens()}
	for name, do := range map[string]func() (bool, error){
		"certificate/verified": func() (bool, error) { _, ok, err := c.verify.AuthenticateRequest(r); return ok, err },
		"certificate/known":    func() (bool, error) { _, ok, err := c.AuthenticateRequest(r); return ok, err },
		"token/verified":       func() (bool, error) { _, ok, err := a.read(token); return ok, err },
		"token/known":          func() (bool, error) { _, ok, err := a.signed.read(token, of, a.read); return ok, err },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if ok, err := do(); !ok || err != nil {
					b.Fatal(ok, err)
				}
			}
		})
	}
}
