package auth

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/client-go/kubernetes"
)

const (
	// legacyIssuer is what tokens that are kept in secrets name as their issuer.
	legacyIssuer = "kubernetes/serviceaccount"
	// legacyLastUsed is the label by which a secret says on which day its token was used last.
	legacyLastUsed = "kubernetes.io/legacy-token-last-used"
	// legacyInvalid is the label of a secret whose token was not used for so long that it is good no more.
	legacyInvalid = "kubernetes.io/legacy-token-invalid-since"
	legacyDay     = "2006-01-02"
)

// legacyClaims are what a token says that is kept in a secret: it has no end, and is good as long as the secret is
// there.
type legacyClaims struct {
	jwt.Claims
	Namespace string `json:"kubernetes.io/serviceaccount/namespace"`
	Secret    string `json:"kubernetes.io/serviceaccount/secret.name"`
	Account   string `json:"kubernetes.io/serviceaccount/service-account.name"`
	UID       string `json:"kubernetes.io/serviceaccount/service-account.uid"`
}

// SecretToken makes the token of a service account that a secret keeps. It is good for this API as long as the secret
// has it.
func (a *Auth) SecretToken(account *corev1.ServiceAccount, secret string) (string, error) {
	token, err := jwt.Signed(*a.tokens.signer.Load()).Claims(legacyClaims{
		Claims:    jwt.Claims{Issuer: legacyIssuer, Subject: serviceaccount.MakeUsername(account.Namespace, account.Name)},
		Namespace: account.Namespace, Secret: secret, Account: account.Name, UID: string(account.UID),
	}).Serialize()
	if err != nil {
		return "", fmt.Errorf("sign token of secret %s: %w", secret, err)
	}
	return token, nil
}

// legacyAuthenticator knows tokens that are kept in secrets, and notes when they are used.
type legacyAuthenticator struct {
	tokens  *tokenAuthenticator
	secrets kubernetes.Interface
	now     func() time.Time
}

// AuthenticateToken has no opinion of a token of another issuer.
func (l *legacyAuthenticator) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	if len(token) > longestToken || strings.Count(token, ".") != 2 {
		return nil, false, nil
	}
	parsed, err := jwt.ParseSigned(token, l.tokens.keys.algorithms())
	if err != nil {
		return nil, false, nil // somebody else may know it
	}
	var claims legacyClaims
	if err := parsed.UnsafeClaimsWithoutVerification(&claims); err != nil || claims.Issuer != legacyIssuer {
		return nil, false, nil // somebody else may know it
	}
	if claims, err = l.verify(parsed); err != nil {
		return nil, false, err
	}
	// It names no audience: it is for this API alone.
	audiences := l.tokens.audiences
	if wanted, asked := authenticator.AudiencesFrom(ctx); asked {
		if audiences = wanted.Intersect(audiences); len(audiences) == 0 {
			return nil, false, fmt.Errorf("check token of a secret: it is for %q, not for %q", []string(l.tokens.audiences), []string(wanted))
		}
	}
	account, err := l.check(ctx, &claims, token)
	if err != nil {
		return nil, false, fmt.Errorf("check token of a secret: %w", err)
	}
	l.tokens.uses.noteToken(parsed.Headers[0].KeyID, claims.Subject)
	info := serviceaccount.ServiceAccountInfo{Namespace: account.Namespace, Name: account.Name, UID: string(account.UID)}
	return &authenticator.Response{User: info.UserInfo(), Audiences: slices.Clip(audiences)}, true, nil
}

// verify reads the claims again, from what the signature covers.
func (l *legacyAuthenticator) verify(parsed *jwt.JSONWebToken) (legacyClaims, error) {
	if len(parsed.Headers) != 1 {
		return legacyClaims{}, errors.New("check token of a secret: it has more than one signature")
	}
	for _, key := range l.tokens.keys.candidates(parsed.Headers[0].KeyID, parsed.Headers[0].Algorithm) {
		var claims legacyClaims
		if err := parsed.Claims(key.Key, &claims); err == nil {
			return claims, nil
		}
	}
	return legacyClaims{}, errors.New("check token of a secret: no key of the cluster has signed it")
}

// check finds the secret that has the token, and its service account.
func (l *legacyAuthenticator) check(ctx context.Context, c *legacyClaims, token string) (*corev1.ServiceAccount, error) {
	switch {
	case c.Namespace == "" || c.Secret == "" || c.Account == "" || c.UID == "":
		return nil, errors.New("it does not name its secret and service account")
	case c.Subject != serviceaccount.MakeUsername(c.Namespace, c.Account):
		return nil, errors.New("its subject is not its service account")
	}
	// What is not current is asked for again: a secret that was made a moment ago, and one that was made anew.
	o, err := l.tokens.objects.get(ctx, "Secret", c.Namespace, c.Secret, "")
	if err != nil {
		return nil, fmt.Errorf("find its secret %s: %w", c.Secret, err)
	}
	secret, ok := o.(*corev1.Secret)
	if !ok || secret.DeletionTimestamp != nil || subtle.ConstantTimeCompare(secret.Data[corev1.ServiceAccountTokenKey], []byte(token)) != 1 {
		return nil, fmt.Errorf("secret %s does not have it", c.Secret)
	}
	o, err = l.tokens.objects.get(ctx, "ServiceAccount", c.Namespace, c.Account, c.UID)
	if err != nil {
		return nil, fmt.Errorf("find its service account %s: %w", c.Account, err)
	}
	account, ok := o.(*corev1.ServiceAccount)
	if !ok || account.DeletionTimestamp != nil || string(account.UID) != c.UID {
		return nil, fmt.Errorf("its service account %s is another one, or deleted", c.Account)
	}
	if err := l.used(ctx, secret); err != nil {
		return nil, err
	}
	if secret.Labels[legacyInvalid] != "" {
		audit.AddAuditAnnotation(ctx, "authentication.k8s.io/legacy-token-invalidated", secret.Name+"/"+secret.Namespace)
		return nil, fmt.Errorf("the token in secret %s/%s for service account %s/%s has been marked invalid. Use tokens from the TokenRequest API "+
			"or manually created secret-based tokens, or remove the %q label from the secret to temporarily allow use of this token",
			secret.Namespace, secret.Name, account.Namespace, account.Name, legacyInvalid)
	}
	kind := "manual"
	if slices.ContainsFunc(account.Secrets, func(r corev1.ObjectReference) bool { return r.Name == secret.Name }) {
		kind = "autogenerated"
	}
	audit.AddAuditAnnotation(ctx, "authentication.k8s.io/legacy-token-"+kind+"-secret", secret.Name)
	return account, nil
}

// used notes the day on which a token is used, once. Where it is refused as invalid, too: its user wants it.
func (l *legacyAuthenticator) used(ctx context.Context, s *corev1.Secret) error {
	today := l.now().UTC().Format(legacyDay)
	if s.Labels[legacyLastUsed] == today {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": s.UID, "labels": map[string]any{legacyLastUsed: today}}})
	if err != nil {
		return fmt.Errorf("note its use: %w", err)
	}
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
	defer cancel()
	_, err = l.secrets.CoreV1().Secrets(s.Namespace).Patch(within, s.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return fmt.Errorf("note its use: %w", err) // the secret is gone, or another one
	}
	// Where the store takes no writes, who comes with a token comes in all the same.
	return nil
}
