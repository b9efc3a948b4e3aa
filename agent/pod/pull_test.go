package pod

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/event"
	"github.com/berth-node/berth/agent/pod/plan"
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

// perHandler is a runtime that has an image for each of its handlers.
type perHandler struct {
	Runtime
	asked map[string][]string
}

func (p *perHandler) ImageStatus(_ context.Context, r *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	h := r.GetImage().GetRuntimeHandler()
	p.asked[h] = append(p.asked[h], r.GetImage().GetImage())
	if !strings.HasSuffix(r.GetImage().GetImage(), "@"+h) {
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	return &runtimeapi.ImageStatusResponse{Image: &runtimeapi.Image{Id: "id@" + h}}, nil
}

func (p *perHandler) PullImage(_ context.Context, r *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	return &runtimeapi.PullImageResponse{ImageRef: "pulled@" + r.GetImage().GetRuntimeHandler()}, nil
}

func TestImagesAreThoseOfThePodsHandler(t *testing.T) {
	rt := &perHandler{asked: map[string][]string{}}
	w := puller{node: &node{cfg: Config{Runtime: rt, Events: event.NewRecorder("node"), Node: NodeConfig{IPs: func() []string { return nil }}}}}
	c := &corev1.Container{Name: "main", Image: "r.io/x:1"}
	for _, handler := range []string{"", "wasm"} {
		img, err := w.haveImage(t.Context(), &corev1.Pod{}, c, handler)
		if err != nil || img.ID != "id@"+handler {
			t.Errorf("for %q: %+v, %v", handler, img, err)
		}
	}
	want := map[string][]string{"": {"r.io/x:1", "pulled@"}, "wasm": {"r.io/x:1", "pulled@wasm"}}
	if !reflect.DeepEqual(rt.asked, want) {
		t.Errorf("asked for %q, want %q", rt.asked, want)
	}
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
		w := puller{node: &node{cfg: Config{Runtime: g, Images: ImageConfig{Credentials: c.have}}}}
		_, _, err := w.pullWithCredentials(t.Context(), &corev1.Pod{}, &runtimeapi.PullImageRequest{Image: imageSpec("r.io/x", "")})
		if (err == nil) != c.ok || len(g.shown) != c.shown {
			t.Errorf("%v for %q: showed %q, %v", c.have, c.user, g.shown, err)
		}
	}
}

// TestImageThatCameIsUsedAtOnce: what waits for an image starts as soon as somebody brings it, and what has failed in
// spite of it waits on.
func TestImageThatCameIsUsedAtOnce(t *testing.T) {
	failed := time.Now()
	later := failed.Add(time.Hour)
	for _, c := range []struct {
		named string
		at    time.Time
		tried bool
	}{
		{"docker.io/library/app:latest", failed.Add(time.Second), true},
		{"docker.io/library/app:latest", failed.Add(-time.Second), false},
		{"docker.io/library/app:v2", failed.Add(time.Second), false},
	} {
		key := plan.Step{Kind: plan.Image, Container: "main"}.Key()
		w := &worker{node: &node{}, mail: newMailbox(), tries: tries{failed: map[string]plan.Failure{key: {At: failed, Until: later, Count: 3}}}}
		w.pod = &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "app"}}}}
		w.mail.putImages([]string{"r.io/other:1"}, failed)
		w.mail.putImages([]string{c.named}, c.at)
		w.imagesNamed(*w.mail.images.Swap(nil))
		if got := w.tries.failed[key]; got.Until.IsZero() != c.tried || (got.Count == 0) != c.tried {
			t.Errorf("%s, %v after the failure: %+v", c.named, c.at.Sub(failed), got)
		}
	}
}
