package remote

import (
	"context"
	"errors"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/internal/disk"
)

// full is a runtime without room for an image until so many pulls have failed.
type full struct {
	imageCalls
	fails, pulls int
	why          string
}

func (f *full) PullImage(context.Context, *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	if f.pulls++; f.pulls <= f.fails {
		return nil, errors.New(f.why)
	}
	return &runtimeapi.PullImageResponse{ImageRef: "here"}, nil
}

func TestPullMakesRoom(t *testing.T) {
	const space = "write blob: no space left on device"
	for name, tt := range map[string]struct {
		why   string
		fails int
		more  bool
		asks  bool
		ok    bool
		pulls int
	}{
		"room is made": {space, 1, true, true, true, 2}, "never enough": {space, 9, true, true, false, disk.Tries},
		"none is made": {space, 1, false, true, false, 1}, "nobody makes any": {space, 1, true, false, false, 1},
		"another reason": {"not found", 1, true, true, false, 1},
	} {
		f, r := &full{fails: tt.fails, why: tt.why}, &room{}
		if tt.asks {
			fn := func(context.Context, time.Time) (bool, error) { return tt.more, nil }
			r.make.Store(&fn)
		}
		if _, err := r.pull(t.Context(), f, &runtimeapi.PullImageRequest{}); (err == nil) != tt.ok || f.pulls != tt.pulls {
			t.Errorf("%s: %v after %d pulls", name, err, f.pulls)
		}
	}
}
