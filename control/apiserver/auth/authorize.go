package auth

import (
	"fmt"

	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
	"k8s.io/apiserver/pkg/authorization/union"
	"k8s.io/apiserver/pkg/util/webhook"
	authwebhook "k8s.io/apiserver/plugin/pkg/authorizer/webhook"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook/metrics"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
)

// newAuthorizer puts the authorizers in order. system:masters may do all; what none of the others allows is denied.
func (a *Auth) newAuthorizer(o Options, informers informers.SharedInformerFactory, client kubernetes.Interface) error {
	config, err := readAuthorization(o.AuthorizationConfiguration)
	if err != nil {
		return err
	}
	a.rbac = NewRBAC(informers.Rbac().V1())
	all := []union.NamedAuthorizer{{
		AuthorizerName: "system-masters", Authorizer: authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup),
	}}
	var resolvers []authorizer.RuleResolver
	for _, c := range config.Authorizers {
		one, err := a.authorizerOf(c, informers, client)
		if err != nil {
			return fmt.Errorf("make authorizer %s: %w", c.Name, err)
		}
		all = append(all, union.NamedAuthorizer{AuthorizerName: c.Name, Authorizer: one})
		resolvers = append(resolvers, one)
	}
	a.authorizer, err = union.New(all...)
	a.resolver = union.NewRuleResolvers(resolvers...)
	return err
}

// ruled is an authorizer that can tell, too, what somebody may.
type ruled interface {
	authorizer.Authorizer
	authorizer.RuleResolver
}

func (a *Auth) authorizerOf(c apiserver.AuthorizerConfiguration, informers informers.SharedInformerFactory, client kubernetes.Interface) (ruled, error) {
	switch c.Type {
	case typeNode:
		return newNodeAuthorizer(informers, client)
	case typeRBAC:
		return a.rbac, nil
	case typeAlwaysDeny:
		return authorizerfactory.NewAlwaysDenyAuthorizer(), nil
	case apiserver.TypeWebhook:
		return newWebhookAuthorizer(c)
	}
	return nil, fmt.Errorf("type %s is none of Node, RBAC, Webhook, AlwaysDeny", c.Type)
}

// webhookMetrics counts what webhooks and their conditions answer.
type webhookMetrics struct {
	metrics.NoopRequestMetrics
	metrics.WebhookMetrics
	authorizationcel.MatcherMetrics
}

func newWebhookAuthorizer(c apiserver.AuthorizerConfiguration) (ruled, error) {
	w := c.Webhook
	config, err := webhook.LoadKubeconfig(*w.ConnectionInfo.KubeConfigFile, nil)
	if err != nil {
		return nil, err
	}
	config.Timeout = w.Timeout.Duration
	Bound(config)
	onError := authorizer.DecisionDeny
	if w.FailurePolicy == apiserver.FailurePolicyNoOpinion {
		onError = authorizer.DecisionNoOpinion
	}
	allowed, denied := w.AuthorizedTTL.Duration, w.UnauthorizedTTL.Duration
	if !w.CacheAuthorizedRequests {
		allowed = 0
	}
	if !w.CacheUnauthorizedRequests {
		denied = 0
	}
	return authwebhook.New(config, w.SubjectAccessReviewVersion, allowed, denied, *authwebhook.DefaultRetryBackoff(), onError,
		w.MatchConditions, c.Name, webhookMetrics{
			WebhookMetrics: metrics.NewWebhookMetrics(), MatcherMetrics: authorizationcel.NewMatcherMetrics(),
		}, authorizationcel.NewDefaultCompiler())
}
