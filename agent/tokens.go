package agent

import (
	"context"

	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/cluster"
	"github.com/berth-node/berth/agent/pod"
	"github.com/berth-node/berth/agent/podcert"
	"github.com/berth-node/berth/agent/token"
)

// openIssued opens what the API server makes for its pods, where there is one.
func (a *Agent) openIssued() {
	if a.member == nil {
		return
	}
	renewed := func(uid types.UID) { a.pods.Renew(uid) }
	tokens := token.Config{Ask: askToken(a.member.client), Renewed: renewed, Log: a.log}
	certs := podcert.Config{Client: a.member.client, Node: a.cfg.NodeName, Renewed: renewed, Log: a.log}
	if k := a.member.kept; k != nil {
		tokens.Keep, certs.Keep = k, k
	}
	a.managers.tokens, a.managers.certs = token.New(tokens), podcert.New(certs)
}

// again has it be asked for that the API server has not made: it answers again.
func (m *managers) again() {
	if m.tokens != nil {
		m.tokens.Again()
		m.certs.Again()
	}
	if m.expander != nil {
		m.expander.Again()
	}
}

// runIssued has it be renewed until ctx ends.
func (m *managers) runIssued(ctx context.Context, g *errgroup.Group) {
	if m.tokens == nil {
		return
	}
	g.Go(func() error { m.tokens.Run(ctx); return nil })
	g.Go(func() error { m.certs.Run(ctx); return nil })
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
func (m *managers) issued() pod.Issued {
	if m.tokens == nil {
		return pod.Issued{}
	}
	return pod.Issued{Tokens: m.tokens, Certificates: m.certs}
}
