package auth

import (
	"crypto/sha256"
	"crypto/x509"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	requestx509 "k8s.io/apiserver/pkg/authentication/request/x509"
)

const (
	// certificateTime is how long a chain that was verified counts as such: an authority's own end is noticed by then.
	certificateTime = time.Minute
	// maxCertificates bounds for how many chains that is known. Only what an authority of the cluster has signed is.
	maxCertificates = 4096
)

// certificates tells who comes with a certificate. Clients send many requests over a connection, and to verify the same
// signature for each takes a tenth of the server's time, so that what was verified is known for a while. It is a while
// of the same authorities: with others each chain is verified anew.
type certificates struct {
	authorities requestx509.VerifyOptionFunc
	verify      authenticator.Request
	known       *cache.LRUExpireCache
	now         func() time.Time
}

// verified is whom a chain of certificates has told, by those authorities.
type verified struct {
	by    *x509.CertPool
	who   authenticator.Response
	until time.Time
}

func newCertificates(authorities requestx509.VerifyOptionFunc) *certificates {
	return &certificates{
		authorities, requestx509.NewDynamic(authorities, requestx509.CommonNameUserConversion),
		cache.NewLRUExpireCache(maxCertificates), time.Now,
	}
}

// AuthenticateRequest implements [authenticator.Request].
func (c *certificates) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	options, ok := c.authorities()
	if !ok || r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, false, nil
	}
	// The handshake has shown that the client has the key of the first of them. The others it may send as it likes.
	chain, now := digest(r.TLS.PeerCertificates), c.now()
	if v, ok := c.known.Get(chain); ok {
		if v := v.(verified); v.by == options.Roots && now.Before(v.until) {
			return &v.who, true, nil // a copy, as v is
		}
	}
	who, ok, err := c.verify.AuthenticateRequest(r)
	if !ok || err != nil {
		return who, ok, err
	}
	if until := end(r.TLS.PeerCertificates, now); now.Before(until) {
		c.known.Add(chain, verified{options.Roots, *who, until}, certificateTime)
	}
	return who, true, nil
}

// end is until when a chain that was just verified counts as such.
func end(chain []*x509.Certificate, now time.Time) time.Time {
	until := now.Add(certificateTime)
	for _, c := range chain {
		if c.NotAfter.Before(until) {
			until = c.NotAfter
		}
	}
	return until
}

// digest tells chains apart.
func digest(chain []*x509.Certificate) [sha256.Size]byte {
	if len(chain) == 1 {
		return sha256.Sum256(chain[0].Raw)
	}
	// A certificate is an element of DER and has its length in it, so that no two chains are the same bytes.
	sum := sha256.New()
	for _, c := range chain {
		sum.Write(c.Raw)
	}
	return [sha256.Size]byte(sum.Sum(nil))
}
