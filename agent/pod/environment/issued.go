package environment

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/podcert"
	"github.com/berth-node/berth/agent/token"
)

// defaultTokenSeconds is how long a token is good whose source does not say, as in the API.
const defaultTokenSeconds = 3600

// issued is what the sources of a projected volume need others to make.
func (v *volumes) issued(ctx context.Context, one *corev1.Volume) (spec.Issued, error) {
	out := spec.Issued{Tokens: map[int]string{}, Certificates: map[int]podcert.Credential{}}
	if one.Projected == nil {
		return out, nil
	}
	for i := range one.Projected.Sources {
		switch s := &one.Projected.Sources[i]; {
		case s.ServiceAccountToken != nil && v.cfg.Tokens != nil:
			made, err := v.cfg.Tokens.Token(ctx, v.pod, wantOf(s.ServiceAccountToken))
			if err != nil {
				return out, err
			}
			out.Tokens[i] = made.Text
		case s.PodCertificate != nil && v.cfg.Certificates != nil:
			made, err := v.cfg.Certificates.Credential(v.pod, one.Name, i, s.PodCertificate)
			if err != nil {
				return out, err
			}
			out.Certificates[i] = made
		}
	}
	return out, nil
}

func wantOf(s *corev1.ServiceAccountTokenProjection) token.Want {
	want := token.Want{Audience: s.Audience, Seconds: defaultTokenSeconds}
	if s.ExpirationSeconds != nil {
		want.Seconds = *s.ExpirationSeconds
	}
	return want
}

// forget drops what was made for a pod that needs it no more.
func (v *volumes) forget() {
	if v.cfg.Tokens != nil {
		v.cfg.Tokens.Forget(v.pod.UID)
	}
	if v.cfg.Certificates != nil {
		v.cfg.Certificates.Forget(v.pod.UID)
	}
}
