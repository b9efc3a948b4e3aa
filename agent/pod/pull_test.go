package pod

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// guarded is a registry that lets one user in.
type guarded struct {
	Runtime
	user  string
	shown []string
}

func (g *guarded) PullImage(_ context.Context, r *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	g.shown = append(g.shown, r.GetAuth().GetUsername())
	if r.GetAuth().GetUsername() != g.user {
		return nil, errors.New("unauthorized")
	}
	return &runtimeapi.PullImageResponse{ImageRef: "id"}, nil
}

type credentials []string

func (c credentials) For(context.Context, string) (out []*runtimeapi.AuthConfig, err error) {
	for _, user := range c {
		out = append(out, &runtimeapi.AuthConfig{Username: user})
	}
	return out, nil
}

func TestPullTriesCredentialsInTheirOrder(t *testing.T) {
	for _, c := range []struct {
		have  Credentials
		user  string
		shown int
		ok    bool
	}{
		{nil, "", 1, true},
		{credentials{}, "", 1, true},
		{credentials{"a", "b", "c"}, "b", 2, true},
		{credentials{"a", "b"}, "x", 2, false},
	} {
		g := &guarded{user: c.user}
		w := &worker{node: &node{cfg: Config{Runtime: g, Credentials: c.have}}}
		_, err := w.pullWithCredentials(t.Context(), &corev1.Pod{}, &runtimeapi.PullImageRequest{Image: imageSpec("r.io/x")})
		if (err == nil) != c.ok || len(g.shown) != c.shown {
			t.Errorf("%v for %q: showed %q, %v", c.have, c.user, g.shown, err)
		}
	}
}
