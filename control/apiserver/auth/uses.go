package auth

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
)

const (
	// useGrain is how exactly it is known when somebody came last: each request is not news.
	useGrain = time.Minute
	// maxUsers bounds who is kept for one authority.
	maxUsers = 1000
)

// Uses is who comes with what some authorities, or keys of tokens, have signed: those that are to go. An ID is the
// SHA-256 of a public key, in hex.
type Uses struct {
	changed chan struct{}
	now     func() time.Time

	mu   sync.Mutex
	seen map[string]map[string]time.Time // by ID, and by name
}

func newUses() *Uses {
	return &Uses{changed: make(chan struct{}, 1), now: time.Now, seen: map[string]map[string]time.Time{}}
}

// Watch has those kept that come with what these have signed, and forgets others.
func (u *Uses) Watch(ids []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	maps.DeleteFunc(u.seen, func(id string, _ map[string]time.Time) bool { return !slices.Contains(ids, id) })
	for _, id := range ids {
		if u.seen[id] == nil {
			u.seen[id] = map[string]time.Time{}
		}
	}
}

// Seen are those who came, and when they did last.
func (u *Uses) Seen(id string) map[string]time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	return maps.Clone(u.seen[id])
}

// Changed has something in it when there are others.
func (u *Uses) Changed() <-chan struct{} { return u.changed }

func (u *Uses) note(is func(id string) bool, who string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for id, users := range u.seen {
		now := u.now()
		if !is(id) || now.Sub(users[who]) < useGrain || len(users) >= maxUsers && users[who].IsZero() {
			continue
		}
		users[who] = now
		select {
		case u.changed <- struct{}{}:
		default:
		}
	}
}

// noteCertificate notes whose certificate it is. Its authority is known by the beginning of the hash of its key, as it
// stands in what it has signed.
func (u *Uses) noteCertificate(c *x509.Certificate, who string) {
	by := hex.EncodeToString(c.AuthorityKeyId)
	u.note(func(id string) bool { return len(by) >= 40 && len(id) > len(by) && id[:len(by)] == by }, who)
}

// noteToken notes whose token it is, by the ID of the key that has signed it.
func (u *Uses) noteToken(keyID, who string) {
	raw, err := base64.RawURLEncoding.DecodeString(keyID)
	if err != nil {
		return
	}
	by := hex.EncodeToString(raw)
	u.note(func(id string) bool { return id == by }, who)
}

// certificateUses notes who comes with a certificate that an authenticator has taken.
type certificateUses struct {
	authenticator.Request
	uses *Uses
	// named has the certificate's own name told, where the user is another one that it speaks for.
	named bool
}

// AuthenticateRequest implements [authenticator.Request].
func (c certificateUses) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	got, ok, err := c.Request.AuthenticateRequest(r)
	if ok && r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		leaf := r.TLS.PeerCertificates[0]
		who := leaf.Subject.CommonName
		if !c.named {
			who = got.User.GetName()
		}
		c.uses.noteCertificate(leaf, who)
	}
	return got, ok, err
}
