package agent

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/cluster"
	"github.com/berth-node/berth/agent/pod"
	"github.com/berth-node/berth/agent/token"
)

// openTokens has the API server make tokens of the service accounts of its pods; nil: there is none.
func (a *Agent) openTokens() *token.Manager {
	if a.member == nil {
		return nil
	}
	renewed := func(uid types.UID) { a.pods.Renew(uid) }
	return token.New(token.Config{Ask: askToken(a.member.client), Renewed: renewed, Log: a.log})
}

func askToken(c *cluster.Client) token.Ask {
	return func(
		ctx context.Context, account types.NamespacedName, r *authenticationv1.TokenRequest,
	) (*authenticationv1.TokenRequest, error) {
		r.Namespace, r.Name = account.Namespace, account.Name
		out := new(authenticationv1.TokenRequest)
		return out, c.Create(ctx, corev1.SchemeGroupVersion.WithResource("serviceaccounts"), r, out, "token")
	}
}

// issued is what the API server makes for its pods.
func (a *Agent) issued() pod.Issued {
	if a.managers.tokens == nil {
		return pod.Issued{}
	}
	return pod.Issued{Tokens: a.managers.tokens}
}
