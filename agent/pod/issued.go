package pod

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/pod/environment"
	"github.com/berth-node/berth/agent/token"
)

// Renew has a pod's volumes brought up to date: something that others make for it, such as a token, is another one.
func (m *Manager) Renew(uid types.UID) {
	if w, ok := m.node.registry.get(uid); ok {
		w.mail.putObject()
	}
}

// tokens are those of the node; nil: there are none to be had.
func (n *node) tokens() environment.Tokens {
	if n.cfg.Issued.Tokens == nil {
		return nil
	}
	return slowTokens{n.cfg.Issued.Tokens, n}
}

// slowTokens are tokens as the environments of pods have them: who waits for the API server holds up no other pod.
type slowTokens struct {
	environment.Tokens
	node *node
}

// Token is part of [environment.Tokens].
func (t slowTokens) Token(ctx context.Context, pod *corev1.Pod, want token.Want) (token.Token, error) {
	var made token.Token
	err := t.node.starting.outside(func() (err error) {
		made, err = t.Tokens.Token(ctx, pod, want)
		return err
	})
	return made, err
}
