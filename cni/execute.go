package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"go.opentelemetry.io/otel/propagation"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/excerpt"
	"github.com/berth-node/berth/internal/monitor"
)

// What an executed plugin may take. A result is a few KiB; a plugin that waits for an address or for a daemon of its
// own takes seconds.
const (
	maxResult     = 1 << 20  // bytes of its standard output
	maxComplaint  = 16 << 10 // bytes of its standard error that are told
	pluginTimeout = 4 * time.Minute
	// leftOpen is how long output is waited for of somebody that a plugin has left behind.
	leftOpen = time.Second
	// busyTries is how often a plugin is started, a second apart, whose file is being written (ETXTBSY).
	busyTries = 5
)

// errResult is why a plugin that says too much is ended.
var errResult = fmt.Errorf("its answer has more than %d bytes", maxResult)

// executor executes plugins.
type executor struct {
	version.PluginDecoder
	timeout time.Duration // of one call
	stderr  stderrLog
}

func newExecutor(log *slog.Logger) *executor {
	return &executor{timeout: pluginTimeout, stderr: stderrLog{log}}
}

// stderrLog logs what executed plugins say besides their result.
type stderrLog struct{ log *slog.Logger }

func (w stderrLog) Write(p []byte) (int, error) {
	w.log.Info("network plugin said", "text", strings.TrimSpace(string(p)))
	return len(p), nil
}

// FindInPath finds a plugin.
func (e *executor) FindInPath(name string, paths []string) (string, error) {
	return invoke.FindInPath(name, paths)
}

// ExecPlugin runs the plugin at path, as the CNI specification has it (section 3), with bounds on its answer and its
// time.
func (e *executor) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, e.timeout, fmt.Errorf("no answer within %v", e.timeout))
	defer cancel()
	environ = traced(ctx, environ)
	for try := 1; ; try++ {
		out, err := executeOnce(ctx, path, stdin, environ, e.stderr)
		if !errors.Is(err, unix.ETXTBSY) || try == busyTries {
			return out, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(time.Second):
		}
	}
}

// traced adds what a plugin that traces itself needs to know (W3C Trace Context, as environment variables).
func traced(ctx context.Context, environ []string) []string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	for k, v := range carrier {
		if v != "" {
			environ = append(environ, strings.ToUpper(k)+"="+v)
		}
	}
	return environ
}

func executeOnce(ctx context.Context, path string, stdin []byte, environ []string, log stderrLog) ([]byte, error) {
	cmd := exec.CommandContext(ctx, path)
	out, complaint := excerpt.First{Most: maxResult, Refuse: errResult}, excerpt.First{Most: maxComplaint}
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = environ, bytes.NewReader(stdin), &out, &complaint
	// What the plugin has started ends with it when it is ended.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = leftOpen
	err := monitor.Fork(cmd.Run)
	switch {
	case out.Over:
		err = errResult
	case err == nil || errors.Is(err, exec.ErrWaitDelay):
		if len(complaint.Bytes) > 0 {
			_, _ = log.Write(complaint.Bytes)
		}
		return out.Bytes, nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case len(out.Bytes) > 0:
		// Its own words: an error of CNI, which callers tell apart by its code.
		said := &types.Error{}
		if json.Unmarshal(out.Bytes, said) == nil && (said.Msg != "" || said.Code != 0) {
			return nil, said
		}
		err = fmt.Errorf("%w: %q", err, out.Bytes[:min(len(out.Bytes), maxComplaint)])
	}
	if text := strings.TrimSpace(string(complaint.Bytes)); text != "" {
		err = fmt.Errorf("%w: %q", err, text)
	}
	return nil, fmt.Errorf("run network plugin %s: %w", filepath.Base(path), err)
}
