package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod"
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
		"several go":          {3, 5, 4, errors.New("rpc error: code = Unknown desc = no space left on device"), true},
		"too little can go":   {3, 1, 2, unix.ENOSPC, false},
		"nothing to do by it": {1, 5, 1, errors.New("no such image"), false},
	} {
		t.Run(name, func(t *testing.T) {
			rt := &fullRuntime{needs: c.needs, cause: c.cause}
			free := func(context.Context) (bool, error) {
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
