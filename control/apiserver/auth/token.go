package auth

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	tokenjwt "k8s.io/apiserver/pkg/authentication/token/jwt"
)

// TokenClaims are what a token of a service account says.
type TokenClaims struct {
	jwt.Claims
	Kubernetes TokenBinding `json:"kubernetes.io,omitzero"`
}

// TokenBinding says which objects must be there for a token to be good.
type TokenBinding struct {
	Namespace      string           `json:"namespace,omitempty"`
	ServiceAccount BoundObject      `json:"serviceaccount,omitzero"`
	Pod            *BoundObject     `json:"pod,omitempty"`
	Secret         *BoundObject     `json:"secret,omitempty"`
	Node           *BoundObject     `json:"node,omitempty"`
	WarnAfter      *jwt.NumericDate `json:"warnafter,omitempty"`
}

// BoundObject is one of them. Another object of the same name has another UID.
type BoundObject struct {
	Name string `json:"name,omitempty"`
	UID  string `json:"uid,omitempty"`
}

func bound(o metav1.Object) *BoundObject {
	return &BoundObject{Name: o.GetName(), UID: string(o.GetUID())}
}

// Claims are those of a token for a service account, bound to a pod (with its node), a secret or a node, or to none.
// It is good for seconds from now on. With a warnAfter that is not 0, its use is noted after so many seconds.
func Claims(account *corev1.ServiceAccount, to Bindings, audiences []string, seconds, warnAfter int64, now time.Time) (TokenClaims, error) {
	if to.Secret != nil && (to.Pod != nil || to.Node != nil) {
		return TokenClaims{}, errors.New("a token is bound to one kind of object only")
	}
	c := TokenClaims{
		Claims: jwt.Claims{
			ID:        string(uuid.NewUUID()),
			Subject:   serviceaccount.MakeUsername(account.Namespace, account.Name),
			Audience:  audiences,
			IssuedAt:  jwt.NewNumericDate(now),
			NotBefore: jwt.NewNumericDate(now),
			Expiry:    jwt.NewNumericDate(now.Add(time.Duration(seconds) * time.Second)),
		},
		Kubernetes: TokenBinding{Namespace: account.Namespace, ServiceAccount: *bound(account)},
	}
	if to.Pod != nil {
		c.Kubernetes.Pod = bound(to.Pod)
	}
	if to.Secret != nil {
		c.Kubernetes.Secret = bound(to.Secret)
	}
	if to.Node != nil {
		c.Kubernetes.Node = bound(to.Node)
	}
	if warnAfter != 0 {
		c.Kubernetes.WarnAfter = jwt.NewNumericDate(now.Add(time.Duration(warnAfter) * time.Second))
	}
	return c, nil
}

// Bindings are the objects that a token is bound to. A pod's node is only told of.
type Bindings struct {
	Pod    *corev1.Pod
	Secret *corev1.Secret
	Node   *corev1.Node
}

// TokenGenerator signs tokens.
type TokenGenerator interface {
	// Generate makes the token that says so. The issuer is its own.
	Generate(ctx context.Context, claims TokenClaims) (string, error)
}

type signer struct {
	issuer string
	signer atomic.Pointer[jose.Signer]
}

func newSigner(issuer string, key crypto.Signer) (*signer, error) {
	s := &signer{issuer: issuer}
	return s, s.set(key)
}

// set has another key sign from now on.
func (s *signer) set(key crypto.Signer) error {
	algorithm, err := algorithmOf(key.Public())
	if err != nil {
		return err
	}
	id, err := keyID(key.Public())
	if err != nil {
		return err
	}
	with, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: jose.JSONWebKey{Key: key, KeyID: id}}, nil)
	if err == nil {
		s.signer.Store(&with)
	}
	return err
}

func (s *signer) Generate(_ context.Context, claims TokenClaims) (string, error) {
	claims.Issuer = s.issuer
	token, err := jwt.Signed(*s.signer.Load()).Claims(claims).Serialize()
	if err != nil {
		return "", fmt.Errorf("sign token of %s: %w", claims.Subject, err)
	}
	return token, nil
}

// longestToken bounds what is parsed, in bytes. Headers of a request are bounded by the server, at 1 MiB; a token of
// ours has some 1,000.
const longestToken = 64 << 10

// tokenAuthenticator knows the tokens that this cluster has issued. What a token is bound to is looked at each time, so
// that one is refused at once when that is gone; what it says and who has signed it is not verified twice.
type tokenAuthenticator struct {
	issuer    string
	keys      *keys
	signed    *signedTokens
	uses      *Uses
	audiences authenticator.Audiences
	objects   objectGetter
	now       func() time.Time
}

// AuthenticateToken has no opinion of a token of another issuer, and an error for one of ours that is not good.
func (t *tokenAuthenticator) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	if len(token) > longestToken || strings.Count(token, ".") != 2 {
		return nil, false, nil
	}
	says, ok, err := t.signed.read(token, t.keys, t.read)
	if !ok || err != nil {
		return nil, false, err
	}
	claims := says.claims
	audiences, err := t.audience(ctx, claims)
	if err != nil {
		return nil, false, err
	}
	if err := claims.ValidateWithLeeway(jwt.Expected{Time: t.now()}, leeway); err != nil {
		return nil, false, fmt.Errorf("check service account token: %w", err)
	}
	if claims.Expiry == nil {
		return nil, false, errors.New("check service account token: it has no end")
	}
	if err := claims.Kubernetes.check(ctx, t.objects, t.now()); err != nil {
		return nil, false, fmt.Errorf("check service account token: %w", err)
	}
	info := claims.info()
	// What roles are bound to is the subject, which must be what the binding was checked for.
	if claims.Subject != serviceaccount.MakeUsername(info.Namespace, info.Name) {
		return nil, false, errors.New("check service account token: its subject is not its service account")
	}
	t.uses.noteToken(says.keyID, claims.Subject)
	return &authenticator.Response{User: info.UserInfo(), Audiences: audiences}, true, nil
}

// read says what a token of this issuer says that one of the keys has signed. It has no opinion of others.
func (t *tokenAuthenticator) read(token string) (signedToken, bool, error) {
	// The parser takes the algorithms of our keys and no other: neither none, nor HMAC with a public key as the secret.
	parsed, err := jwt.ParseSigned(token, t.keys.algorithms())
	if err != nil {
		return signedToken{}, false, nil // somebody else may know it
	}
	var claims TokenClaims
	if err := parsed.UnsafeClaimsWithoutVerification(&claims); err != nil || claims.Issuer != t.issuer {
		return signedToken{}, false, nil // somebody else may know it
	}
	if claims, err = t.verify(parsed); err != nil {
		return signedToken{}, false, err
	}
	return signedToken{claims: claims, keyID: parsed.Headers[0].KeyID}, true, nil
}

// leeway is what clocks of machines may differ by.
const leeway = jwt.DefaultLeeway

// verify reads the claims again, from what the signature covers.
func (t *tokenAuthenticator) verify(parsed *jwt.JSONWebToken) (TokenClaims, error) {
	if len(parsed.Headers) != 1 {
		return TokenClaims{}, errors.New("check service account token: it has more than one signature")
	}
	header := parsed.Headers[0]
	for _, key := range t.keys.candidates(header.KeyID, header.Algorithm) {
		var claims TokenClaims
		if err := parsed.Claims(key.Key, &claims); err == nil {
			return claims, nil
		}
	}
	return TokenClaims{}, errors.New("check service account token: no key of the cluster has signed it")
}

// audience is who of those that are asked for the token is for.
func (t *tokenAuthenticator) audience(ctx context.Context, claims TokenClaims) (authenticator.Audiences, error) {
	wanted, asked := authenticator.AudiencesFrom(ctx)
	if !asked {
		wanted = t.audiences
	}
	both := wanted.Intersect(authenticator.Audiences(claims.Audience))
	if len(both) == 0 {
		return nil, fmt.Errorf("check service account token: it is for %q, not for %q", []string(claims.Audience), []string(wanted))
	}
	if !asked {
		return both, nil
	}
	return slices.Clip(both), nil
}

// info is what is known of who has the token.
func (c *TokenClaims) info() *serviceaccount.ServiceAccountInfo {
	b := c.Kubernetes
	info := &serviceaccount.ServiceAccountInfo{
		Namespace: b.Namespace, Name: b.ServiceAccount.Name, UID: b.ServiceAccount.UID, CredentialID: tokenjwt.CredentialIDForJTI(c.ID),
	}
	if b.Pod != nil {
		info.PodName, info.PodUID = b.Pod.Name, b.Pod.UID
	}
	if b.Node != nil {
		info.NodeName, info.NodeUID = b.Node.Name, b.Node.UID
	}
	return info
}
