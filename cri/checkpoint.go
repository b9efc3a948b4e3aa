package cri

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// CheckpointContainer says what is missing for it: checkpoints need CRIU, a CRIU that can on this kernel, and a handler that asks
// it, which the built-in one does not do yet.
func (s *Server) CheckpointContainer(ctx context.Context, r *runtimeapi.CheckpointContainerRequest) (*runtimeapi.CheckpointContainerResponse, error) {
	return call(ctx, "CheckpointContainer", func(ctx context.Context) (*runtimeapi.CheckpointContainerResponse, error) {
		c, err := s.ctrs.byID.get(r.GetContainerId())
		if err != nil {
			return nil, err
		}
		if st := c.record().State; st != containerRunning {
			return nil, fmt.Errorf("%w: container %q is in %s state", errPrecondition, c.id, st.cri())
		}
		return nil, fmt.Errorf("checkpoint container %s: %w", c.id, noCheckpoint(ctx))
	})
}

// noCheckpoint is the reason why no container can be checkpointed.
func noCheckpoint(ctx context.Context) error {
	criu, err := exec.LookPath("criu")
	if err != nil {
		return fmt.Errorf("%w: the program criu is not installed (in most distributions the package criu)", errors.ErrUnsupported)
	}
	if out, err := exec.CommandContext(ctx, criu, "check").CombinedOutput(); err != nil {
		return fmt.Errorf("%w: this kernel cannot, for which it needs CONFIG_CHECKPOINT_RESTORE and more (criu check: %w): %s", errors.ErrUnsupported, err, lastLine(string(out)))
	}
	return fmt.Errorf("%w: the built-in handler does not use CRIU yet", errors.ErrUnsupported)
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}
