package auth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"sync/atomic"

	"github.com/go-jose/go-jose/v4"
)

// JWKSPath is where the keys are that verify tokens of service accounts.
const JWKSPath = "/openid/v1/jwks"

// leastRSA is how long, in bits, RFC 7518, 3.3 wants a key of RSA to be.
const leastRSA = 2048

// keys are the public keys that verify tokens, by their ID.
type keys struct {
	all atomic.Pointer[[]jose.JSONWebKey]
}

func newKeys(public []any) (*keys, error) {
	k := &keys{}
	return k, k.set(public)
}

// set has others verify tokens from now on.
func (k *keys) set(public []any) error {
	all, err := webKeys(public)
	if err == nil {
		k.all.Store(&all)
	}
	return err
}

func (k *keys) list() []jose.JSONWebKey { return *k.all.Load() }

func webKeys(public []any) ([]jose.JSONWebKey, error) {
	var all []jose.JSONWebKey
	for i, key := range public {
		algorithm, err := algorithmOf(key)
		if err != nil {
			return nil, fmt.Errorf("key %d: %w", i, err)
		}
		id, err := keyID(key)
		if err != nil {
			return nil, fmt.Errorf("key %d: %w", i, err)
		}
		if slices.ContainsFunc(all, func(o jose.JSONWebKey) bool { return o.KeyID == id }) {
			continue
		}
		all = append(all, jose.JSONWebKey{Key: key, KeyID: id, Algorithm: string(algorithm), Use: "sig"})
	}
	return all, nil
}

// algorithmOf is the one by which a key signs.
func algorithmOf(public crypto.PublicKey) (jose.SignatureAlgorithm, error) {
	switch key := public.(type) {
	case *rsa.PublicKey:
		if key.N.BitLen() < leastRSA {
			return "", fmt.Errorf("a key of RSA has %d bits, want at least %d", key.N.BitLen(), leastRSA)
		}
		return jose.RS256, nil
	case *ecdsa.PublicKey:
		switch key.Curve {
		case elliptic.P256():
			return jose.ES256, nil
		case elliptic.P384():
			return jose.ES384, nil
		case elliptic.P521():
			return jose.ES512, nil
		}
	}
	return "", fmt.Errorf("%T is no key of RSA, or of ECDSA by P-256, P-384 or P-521", public)
}

// keyID is the hash of the key, as Kubernetes has it, so that it is the same wherever the key is read.
func keyID(public crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(der)
	return base64.RawURLEncoding.EncodeToString(sum[:]), nil
}

// candidates are the keys that may have signed a token: the one that it names, or all by its algorithm.
func (k *keys) candidates(id, algorithm string) []jose.JSONWebKey {
	var found []jose.JSONWebKey
	for _, key := range k.list() {
		// An algorithm is the key's, never what the token says alone: else a public key becomes the secret of an HMAC.
		if key.Algorithm == algorithm && (id == "" || id == key.KeyID) {
			found = append(found, key)
		}
	}
	return found
}

// algorithms are those of the keys.
func (k *keys) algorithms() []jose.SignatureAlgorithm {
	var all []jose.SignatureAlgorithm
	for _, key := range k.list() {
		if a := jose.SignatureAlgorithm(key.Algorithm); !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	slices.Sort(all)
	return all
}

// JWKS is the body of /openid/v1/jwks: the keys that verify tokens (RFC 7517).
func (a *Auth) JWKS() ([]byte, error) {
	body, err := json.Marshal(jose.JSONWebKeySet{Keys: a.keys.list()})
	if err != nil {
		return nil, fmt.Errorf("encode keys: %w", err)
	}
	return body, nil
}

// OpenIDMetadata is the body of /.well-known/openid-configuration (OpenID Connect Discovery 1.0, 3). address is the
// host and port by which others reach the server.
func (a *Auth) OpenIDMetadata(address string) ([]byte, error) {
	where := url.URL{Scheme: "https", Host: address, Path: JWKSPath}
	body, err := json.Marshal(struct {
		Issuer        string                    `json:"issuer"`
		JWKSURI       string                    `json:"jwks_uri"`
		ResponseTypes []string                  `json:"response_types_supported"`
		SubjectTypes  []string                  `json:"subject_types_supported"`
		SigningAlgs   []jose.SignatureAlgorithm `json:"id_token_signing_alg_values_supported"`
	}{a.tokens.issuer, where.String(), []string{"id_token"}, []string{"public"}, a.keys.algorithms()})
	if err != nil {
		return nil, fmt.Errorf("encode metadata: %w", err)
	}
	return body, nil
}
