package environment

import (
	"context"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/podcert"
	"github.com/berth-node/berth/agent/token"
	"github.com/berth-node/berth/agent/volume"
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
			text, err := v.token(ctx, one.Name, s.ServiceAccountToken)
			if err != nil {
				return out, err
			}
			out.Tokens[i] = text
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

// maxTokenFile is more than a token has, in bytes.
const maxTokenFile = 256 << 10

// token is the token of a source: one from the API server, or where that gives none now the one that the volume has
// been given by an agent before this one. That one is in memory only, so that it is not the machine's of before.
func (v *volumes) token(ctx context.Context, volumeName string, s *corev1.ServiceAccountTokenProjection) (string, error) {
	want := wantOf(s)
	made, err := v.cfg.Tokens.Token(ctx, v.pod, want)
	if err == nil {
		return made.Text, nil
	}
	dir := filepath.Join(v.cfg.RootDir, "pods", string(v.pod.UID), "volumes", projected, volumeName)
	had, readErr := volume.ReadFile(dir, s.Path, maxTokenFile)
	if readErr != nil {
		return "", err
	}
	if made, ok := v.cfg.Tokens.Adopt(v.pod, want, string(had)); ok {
		return made.Text, nil
	}
	return "", err
}

// projected is the directory of projected volumes among those of a pod, by kubelet's name.
const projected = "kubernetes.io~projected"

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
