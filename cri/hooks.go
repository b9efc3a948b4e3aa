package cri

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// hookTimeout is how long a hook without a limit of its own may take: nothing of a container may hang for ever.
const hookTimeout = time.Minute

func hasPoststop(s *specs.Spec) bool { return s.Hooks != nil && len(s.Hooks.Poststop) > 0 }

// poststop runs the hooks that are to be run when all of a container has ended. The launcher runs all others; it is not there
// any more. A container's end does not depend on them, as the OCI specification has it, and the record says whether they are
// still to be run.
func (cs *containers) poststop(ctx context.Context, c *container) {
	if !c.record().Poststop {
		return
	}
	if err := cs.runPoststop(ctx, c); err != nil {
		cs.log.Warn("hooks of an ended container have failed", append(c.logAttrs(), "error", err)...)
	}
	cs.note(c, func(r *containerRecord) { r.Poststop = false })
}

func (cs *containers) runPoststop(ctx context.Context, c *container) error {
	spec, err := readSpec(cs.paths.spec(c.id))
	if err != nil {
		return err
	}
	if !hasPoststop(spec) {
		return nil
	}
	state, err := json.Marshal(specs.State{
		Version: specs.Version, ID: c.id, Status: specs.StateStopped, Bundle: cs.paths.container(c.id), Annotations: spec.Annotations,
	})
	if err != nil {
		return fmt.Errorf("encode state: %w", err)
	}
	var errs []error
	for _, h := range spec.Hooks.Poststop {
		errs = append(errs, runHook(ctx, h, state))
	}
	return errors.Join(errs...)
}

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
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("hook %s: %w: %s", h.Path, err, bytes.TrimSpace(out[:min(len(out), 1000)]))
	}
	return nil
}
