package agent

import (
	"context"
	"errors"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod"
)

// startedRuntime has as many sandboxes as were asked for.
type startedRuntime struct {
	pod.Runtime
	sandboxes int
}

func (r *startedRuntime) RunPodSandbox(context.Context, *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	r.sandboxes++
	return &runtimeapi.RunPodSandboxResponse{}, nil
}

// TestRecordedRuntime: a runtime gets no pod before it is recorded, which is tried until it works and not again then.
func TestRecordedRuntime(t *testing.T) {
	of, tries := &startedRuntime{}, 0
	cause := errors.New("read-only")
	r := &recordedRuntime{Runtime: of, record: func() error {
		if tries++; tries < 3 {
			return cause
		}
		return nil
	}}
	for i, want := range []error{cause, cause, nil, nil} {
		if _, err := r.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{}); !errors.Is(err, want) || of.sandboxes != max(0, i-1) {
			t.Errorf("try %d: %v, %d sandboxes", i, err, of.sandboxes)
		}
	}
	if tries != 3 {
		t.Errorf("recorded %d times", tries)
	}
}
