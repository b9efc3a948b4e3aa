package auth

import (
	"crypto/sha256"
	"time"

	"github.com/go-jose/go-jose/v4"
	"k8s.io/apimachinery/pkg/util/cache"
)

const (
	// signedTime is how long it is known what a token says that nobody comes with again.
	signedTime = 10 * time.Minute
	// maxSigned bounds of how many tokens that is known.
	maxSigned = 4096
)

// signedToken is what a token says by a signature that was verified. It is the same for all requests, and read only.
type signedToken struct {
	claims TokenClaims
	keyID  string
	by     *[]jose.JSONWebKey // the keys at the time; others have it verified anew
}

// signedTokens know what tokens say that were verified. A pod comes with the same for most of an hour.
type signedTokens struct{ known *cache.LRUExpireCache }

func newSignedTokens() *signedTokens { return &signedTokens{cache.NewLRUExpireCache(maxSigned)} }

// read is what read says, which is asked once for each token and set of keys. What it does not take is asked again.
func (s *signedTokens) read(token string, keys *keys, read func(string) (signedToken, bool, error)) (signedToken, bool, error) {
	is, by := sha256.Sum256([]byte(token)), keys.all.Load()
	if known, ok := s.known.Get(is); ok {
		if known := known.(signedToken); known.by == by {
			return known, true, nil
		}
	}
	// Keys that come meanwhile are others than by, so that what they have verified is verified again.
	says, ok, err := read(token)
	if ok && err == nil {
		says.by = by
		s.known.Add(is, says, signedTime)
	}
	return says, ok, err
}
