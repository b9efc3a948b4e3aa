package container

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-node/berth/internal/monitor"
)

// hookTimeout is how long a hook without a limit of its own may take: nothing of a container may hang for ever.
const hookTimeout = time.Minute

func hasPoststop(s *specs.Spec) bool { return s.Hooks != nil && len(s.Hooks.Poststop) > 0 }

// runHook runs one hook with the container's state on its standard input.
func runHook(ctx context.Context, h specs.Hook, state []byte) error {
	timeout := hookTimeout
	if h.Timeout != nil {
		timeout = time.Duration(*h.Timeout) * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, h.Path)
	if len(h.Args) > 0 {
		cmd.Args = h.Args
	}
	// Never this process's environment, which the specification does not promise.
	cmd.Env = append([]string{}, h.Env...)
	cmd.Stdin = bytes.NewReader(state)
	// What a hook leaves behind may hold its output open.
	cmd.WaitDelay = time.Second
	var out []byte
	err := monitor.Fork(func() (err error) {
		out, err = cmd.CombinedOutput()
		return err
	})
	if err != nil {
		return fmt.Errorf("hook %s: %w: %s", h.Path, err, bytes.TrimSpace(out[:min(len(out), 1000)]))
	}
	return nil
}
