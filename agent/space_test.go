package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod"
	"github.com/berth-node/berth/eviction/collect/images"
	"github.com/berth-node/berth/internal/disk"
)

// fullRuntime has room for an image when enough has been removed.
type fullRuntime struct {
	pod.Runtime
	pulls, needs int
	cause        error
}

func (r *fullRuntime) PullImage(context.Context, *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	r.pulls++
	if r.needs > 0 {
		return nil, fmt.Errorf("unpack layer: %w", r.cause)
	}
	return &runtimeapi.PullImageResponse{ImageRef: "x"}, nil
}

func TestPullFreesSpace(t *testing.T) {
	for name, c := range map[string]struct {
		needs, has, pulls int
		cause             error
		works             bool
	}{
		"there is room":       {0, 5, 1, unix.ENOSPC, true},
		"one goes":            {1, 5, 2, unix.ENOSPC, true},
		"by a socket":         {1, 5, 2, errors.New("rpc error: code = Unknown desc = no space left on device"), true},
		"nothing can go":      {1, 0, 1, unix.ENOSPC, false},
		"it never fits":       {100, 100, disk.Tries, unix.ENOSPC, false},
		"nothing to do by it": {1, 5, 1, errors.New("no such image"), false},
	} {
		t.Run(name, func(t *testing.T) {
			rt := &fullRuntime{needs: c.needs, cause: c.cause}
			free := func(context.Context, time.Time) (bool, error) {
				if c.has == 0 {
					return false, nil
				}
				c.has--
				rt.needs--
				return true, nil
			}
			resp, err := freeingRuntime{rt, free, slog.New(slog.DiscardHandler)}.PullImage(t.Context(), &runtimeapi.PullImageRequest{})
			if (err == nil) != c.works || rt.pulls != c.pulls || c.works && resp.GetImageRef() != "x" {
				t.Errorf("got %v, %v after %d pulls, want %d", resp, err, rt.pulls, c.pulls)
			}
		})
	}
}

// askedRuntime is asked for its images, and has no answer.
type askedRuntime struct{ images.Runtime }

var errAsked = errors.New("asked")

func (askedRuntime) ListImages(context.Context, *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	return nil, errAsked
}

// No image is removed before it is known which pods there are, whoever has no room: an import waits until then.
func TestRoomWaitsForManifests(t *testing.T) {
	read := make(chan struct{})
	r := &room{read: read, images: images.New(images.Config{Runtime: askedRuntime{}, Policy: images.Policy{High: 85, Low: 80}})}
	for name, free := range map[string]func(context.Context, time.Time) (bool, error){"pull": r.free, "container": r.freeIfFull} {
		if freed, err := free(t.Context(), time.Now()); freed || err != nil {
			t.Errorf("%s before: %v, %v", name, freed, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if freed, err := r.freeForImport(ctx, time.Now()); freed || err != nil {
		t.Errorf("import that is given up: %v, %v", freed, err)
	}
	close(read)
	for name, free := range map[string]func(context.Context, time.Time) (bool, error){
		"pull": r.free, "container": r.freeIfFull, "import": r.freeForImport,
	} {
		if _, err := free(t.Context(), time.Now()); !errors.Is(err, errAsked) {
			t.Errorf("%s after: %v", name, err)
		}
	}
}

// knownTo are pods with a status, and those that the node runs.
type knownTo struct{ shown, active []*corev1.Pod }

func (k knownTo) List() []*corev1.Pod   { return k.shown }
func (k knownTo) Active() []*corev1.Pod { return k.active }

// TestWantedImages: an image is wanted from when its pod is known, not from when somebody has looked at the pod.
func TestWantedImages(t *testing.T) {
	of := func(image string, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: image}}}, Status: corev1.PodStatus{Phase: phase},
		}
	}
	fresh := of("fresh", "")
	fresh.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "files"}}}}
	got := wantedImages(knownTo{
		shown:  []*corev1.Pod{of("held", corev1.PodPending), of("runs", corev1.PodRunning), of("done", corev1.PodSucceeded)},
		active: []*corev1.Pod{of("runs", corev1.PodRunning), fresh},
	})
	slices.Sort(got)
	if want := []string{"files", "fresh", "held", "runs"}; !slices.Equal(slices.Compact(got), want) {
		t.Errorf("%q, want %q", got, want)
	}
}
