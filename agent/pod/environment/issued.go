package environment

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/token"
)

// defaultTokenSeconds is how long a token is good whose source does not say, as in the API.
const defaultTokenSeconds = 3600

// issued is what the sources of a projected volume need others to make.
func (v *volumes) issued(ctx context.Context, one *corev1.Volume) (spec.Issued, error) {
	var out spec.Issued
	if one.Projected == nil || v.cfg.Tokens == nil {
		return out, nil
	}
	for i := range one.Projected.Sources {
		s := one.Projected.Sources[i].ServiceAccountToken
		if s == nil {
			continue
		}
		want := token.Want{Audience: s.Audience, Seconds: defaultTokenSeconds}
		if s.ExpirationSeconds != nil {
			want.Seconds = *s.ExpirationSeconds
		}
		made, err := v.cfg.Tokens.Token(ctx, v.pod, want)
		if err != nil {
			return out, err
		}
		if out.Tokens == nil {
			out.Tokens = map[int]string{}
		}
		out.Tokens[i] = made.Text
	}
	return out, nil
}

// forget drops what was made for a pod that needs it no more.
func (v *volumes) forget() {
	if v.cfg.Tokens != nil {
		v.cfg.Tokens.Forget(v.pod.UID)
	}
}
