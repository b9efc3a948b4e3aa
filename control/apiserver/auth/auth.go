// Package auth tells who sends a request and whether they may: client certificates, service account tokens, bootstrap
// tokens, OIDC, webhooks and front proxies; RBAC, nodes by what their pods need, and webhooks. It signs the tokens of
// service accounts, and says where others find the keys to verify them.
package auth

import (
	"context"
	"crypto"
	"errors"
	"fmt"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
)

// Options are what authentication and authorization are made of.
type Options struct {
	// ClientCA verifies the certificates of clients. Its content may change.
	ClientCA dynamiccertificates.CAContentProvider
	// RequestHeaderCA verifies the certificate of a front proxy, and RequestHeaderNames are the common names that it
	// may have: any, if there are none. Without a CA nobody may say for whom a request is.
	RequestHeaderCA    dynamiccertificates.CAContentProvider
	RequestHeaderNames []string
	// ServiceAccountIssuer is the URL that tokens name as their issuer.
	ServiceAccountIssuer string
	// ServiceAccountAudiences are those that a token for this API server has. The issuer, if there are none.
	ServiceAccountAudiences []string
	// ServiceAccountKey signs tokens: RSA of 2048 bits or more, or ECDSA by P-256, P-384 or P-521.
	ServiceAccountKey crypto.Signer
	// ServiceAccountPublicKeys verify tokens beside the public part of ServiceAccountKey, as while a key is replaced.
	ServiceAccountPublicKeys []any
	// AuthenticationConfiguration and AuthorizationConfiguration are files of apiserver.config.k8s.io. Without the
	// first there is no OIDC, without the second the authorizers are Node and RBAC.
	AuthenticationConfiguration string
	AuthorizationConfiguration  string
	// AuthenticationWebhook is a kubeconfig file of a service that is asked about tokens that nobody else knows.
	AuthenticationWebhook string
	// AnonymousPaths may be asked for by anybody, unless AuthenticationConfiguration says which.
	AnonymousPaths []string
}

// Auth is authentication and authorization of one API server.
type Auth struct {
	authenticator authenticator.Request
	authorizer    authorizer.Authorizer
	resolver      authorizer.RuleResolver
	rbac          *RBAC
	tokens        *signer
	keys          *keys
	uses          *Uses
	audiences     authenticator.Audiences
}

// New makes both. What is asked of the informers is denied until they know, so that nothing waits for them here. ctx is
// the life of the server: while it lasts, the keys of OIDC issuers are fetched.
func New(ctx context.Context, o Options, informers informers.SharedInformerFactory, client kubernetes.Interface) (*Auth, error) {
	switch {
	case o.ServiceAccountIssuer == "":
		return nil, errors.New("make authentication: the issuer of service account tokens is missing")
	case o.ServiceAccountKey == nil:
		return nil, errors.New("make authentication: the key that signs service account tokens is missing")
	}
	a := &Auth{audiences: o.ServiceAccountAudiences, uses: newUses()}
	if len(a.audiences) == 0 {
		a.audiences = authenticator.Audiences{o.ServiceAccountIssuer}
	}
	var err error
	if a.keys, err = newKeys(append([]any{o.ServiceAccountKey.Public()}, o.ServiceAccountPublicKeys...)); err != nil {
		return nil, fmt.Errorf("read keys of service account tokens: %w", err)
	}
	if a.tokens, err = newSigner(o.ServiceAccountIssuer, o.ServiceAccountKey); err != nil {
		return nil, fmt.Errorf("read key that signs service account tokens: %w", err)
	}
	if a.authenticator, err = a.newAuthenticator(ctx, o, informers, client); err != nil {
		return nil, fmt.Errorf("make authentication: %w", err)
	}
	if err := a.newAuthorizer(o, informers, client); err != nil {
		return nil, fmt.Errorf("make authorization: %w", err)
	}
	return a, nil
}

// Authenticator tells who sends a request.
func (a *Auth) Authenticator() authenticator.Request { return a.authenticator }

// Authorizer tells whether they may.
func (a *Auth) Authorizer() authorizer.Authorizer { return a.authorizer }

// RuleResolver tells what somebody may.
func (a *Auth) RuleResolver() authorizer.RuleResolver { return a.resolver }

// RBAC is the authorizer by roles, for those who check that nobody gives away what they do not have.
func (a *Auth) RBAC() *RBAC { return a.rbac }

// APIAudiences are those of this API server.
func (a *Auth) APIAudiences() authenticator.Audiences { return a.audiences }

// Uses is who comes with what an authority has signed that is to go.
func (a *Auth) Uses() *Uses { return a.uses }

// SetServiceAccountKeys has tokens signed with another key from now on, and verified with that and some others.
func (a *Auth) SetServiceAccountKeys(key crypto.Signer, public []any) error {
	// What is signed with the next key must be good at once.
	if err := a.keys.set(append([]any{key.Public()}, public...)); err != nil {
		return fmt.Errorf("read keys of service account tokens: %w", err)
	}
	if err := a.tokens.set(key); err != nil {
		return fmt.Errorf("read key that signs service account tokens: %w", err)
	}
	return nil
}

// Tokens signs tokens of service accounts.
func (a *Auth) Tokens() TokenGenerator { return a.tokens }
