package auth

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	"k8s.io/apiserver/pkg/authentication/token/cache"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"
	tokenwebhook "k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
)

// How long an answer of a webhook about a token is kept, and how long one question may take. Tokens of the cluster's
// own are checked each time, so that one is refused at once when what it is bound to is gone.
const (
	webhookCache   = 2 * time.Minute
	webhookTimeout = 10 * time.Second
)

// newAuthenticator puts the ways in order by which a request can tell whose it is: a front proxy may speak for others,
// so it is first; what asks others over the network is last.
func (a *Auth) newAuthenticator(ctx context.Context, o Options, informers informers.SharedInformerFactory, client kubernetes.Interface) (authenticator.Request, error) {
	config, err := readAuthentication(o.AuthenticationConfiguration, o.ServiceAccountIssuer)
	if err != nil {
		return nil, err
	}
	var requests []authenticator.Request
	if o.RequestHeaderCA != nil {
		proxy := headerrequest.NewDynamicVerifyOptionsSecure(o.RequestHeaderCA.VerifyOptions,
			headerrequest.StaticStringSlice(o.RequestHeaderNames), headerrequest.StaticStringSlice{"X-Remote-User"},
			headerrequest.StaticStringSlice{"X-Remote-Uid"}, headerrequest.StaticStringSlice{"X-Remote-Group"},
			headerrequest.StaticStringSlice{"X-Remote-Extra-"})
		requests = append(requests, certificateUses{authenticator.WrapAudienceAgnosticRequest(a.audiences, proxy), a.uses, true})
	}
	if o.ClientCA != nil {
		requests = append(requests, certificateUses{newCertificates(o.ClientCA.VerifyOptions), a.uses, false})
	}
	own := &tokenAuthenticator{o.ServiceAccountIssuer, a.keys, newSignedTokens(), a.uses, a.audiences, &clusterObjects{informers, client}, time.Now}
	tokens := []authenticator.Token{
		own, &legacyAuthenticator{own, client, time.Now},
		authenticator.WrapAudienceAgnosticToken(a.audiences,
			&bootstrapAuthenticator{informers.Core().V1().Secrets().Lister(), time.Now}),
	}
	// What a lister is asked for before the factory is started is what the factory starts.
	informers.Core().V1().ServiceAccounts().Informer()
	informers.Core().V1().Pods().Informer()
	informers.Core().V1().Nodes().Informer()
	for _, issuer := range config.JWT {
		token, err := newOIDC(ctx, issuer, o.ServiceAccountIssuer)
		if err != nil {
			return nil, fmt.Errorf("use OIDC issuer %s: %w", issuer.Issuer.URL, err)
		}
		tokens = append(tokens, authenticator.WrapAudienceAgnosticToken(a.audiences, token))
	}
	if o.AuthenticationWebhook != "" {
		token, err := newTokenWebhook(o.AuthenticationWebhook, a.audiences)
		if err != nil {
			return nil, fmt.Errorf("use webhook of %s: %w", o.AuthenticationWebhook, err)
		}
		tokens = append(tokens, token)
	}
	all := tokenunion.New(tokens...)
	requests = append(requests, bearertoken.New(all), websocket.NewProtocolAuthenticator(all))
	known := group.NewAuthenticatedGroupAdder(union.New(requests...))
	open := anonymousPaths(config, o.AnonymousPaths)
	if open == nil {
		return known, nil
	}
	// A credential that is wrong is an error, and not anonymous.
	return union.NewFailOnError(known, open), nil
}

// anonymousPaths lets anybody in where that is asked for: by the configuration, or else for some paths. With neither it
// is nil: the library takes an empty list of conditions for all paths.
func anonymousPaths(config *apiserver.AuthenticationConfiguration, paths []string) authenticator.Request {
	if config.Anonymous != nil {
		if !config.Anonymous.Enabled {
			return nil
		}
		return anonymous.NewAuthenticator(config.Anonymous.Conditions)
	}
	if len(paths) == 0 {
		return nil
	}
	var conditions []apiserver.AnonymousAuthCondition
	for _, path := range paths {
		conditions = append(conditions, apiserver.AnonymousAuthCondition{Path: path})
	}
	return anonymous.NewAuthenticator(conditions)
}

func newOIDC(ctx context.Context, issuer apiserver.JWTAuthenticator, ours string) (authenticator.Token, error) {
	o := oidc.Options{JWTAuthenticator: issuer, DisallowedIssuers: []string{ours}, SupportedSigningAlgs: oidc.AllValidSigningAlgorithms()}
	if ca := issuer.Issuer.CertificateAuthority; ca != "" {
		content, err := dynamiccertificates.NewStaticCAContent("oidc", []byte(ca))
		if err != nil {
			return nil, err
		}
		o.CAContentProvider = content
	}
	return oidc.New(ctx, o)
}

func newTokenWebhook(file string, audiences authenticator.Audiences) (authenticator.Token, error) {
	config, err := webhook.LoadKubeconfig(file, nil)
	if err != nil {
		return nil, err
	}
	config.Timeout = webhookTimeout
	Bound(config)
	token, err := tokenwebhook.New(config, "v1", audiences, *tokenwebhook.DefaultRetryBackoff())
	if err != nil {
		return nil, err
	}
	return cache.New(token, false, webhookCache, webhookCache), nil
}
