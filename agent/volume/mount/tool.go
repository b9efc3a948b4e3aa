package mount

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

const (
	// drain is how long what a program has started may keep its output open after the program itself has ended: it
	// might never close it.
	drain = 5 * time.Second
	// mostSaid bounds what is kept of what a program says.
	mostSaid = 64 << 10
)

// Run runs a program of the node, until the context ends at the latest.
func Run(ctx context.Context, name string, args ...string) error {
	tool, err := exec.LookPath(name)
	if err != nil {
		return fmt.Errorf("the program %s is not on the node", name)
	}
	out, said, err := output(ctx, tool, args...)
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(out+said))
	}
	return nil
}

// output runs a program and returns what it writes to its two outputs.
func output(ctx context.Context, tool string, args ...string) (out, said string, err error) {
	cmd := exec.CommandContext(ctx, tool, args...)
	var o, e head
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &o, &e, drain
	err = cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // the program itself has ended well
	}
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return string(o.kept), strings.TrimSpace(string(e.kept)), err
}

// head keeps the beginning of what is written to it.
type head struct{ kept []byte }

func (h *head) Write(p []byte) (int, error) {
	h.kept = append(h.kept, p[:min(len(p), mostSaid-len(h.kept))]...)
	return len(p), nil
}
