package container

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/fault"
	"github.com/berth-node/berth/cri/host"
	"github.com/berth-node/berth/cri/keeper"
	"github.com/berth-node/berth/cri/sandbox"
	"github.com/berth-node/berth/cri/stdio"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// OutputKey in the metadata of an ExecSync says how much of each stream its caller has use for, in bytes. A probe uses
// 10 KiB, and of one that writes without end there is to be no more in memory. The CRI has no field for it.
const OutputKey = "berth-exec-output"

// Execs runs commands in containers.
type Execs struct {
	host     *host.Host
	pods     *sandbox.Sandboxes
	table    *Table
	external *external
	filters  filters
}

// Command is what an exec runs.
type Command struct {
	ID  string
	Cmd []string
	TTY bool
}

// ExecInput builds an exec from the container's own process: same user, capabilities, filter and cgroup.
func (e *Execs) ExecInput(c *Container, x Command) (keeper.Exec, error) {
	base, err := e.execBase(c)
	if err != nil {
		return keeper.Exec{}, err
	}
	p := *base.process
	p.Args, p.Terminal = x.Cmd, x.TTY
	if x.TTY && !slices.ContainsFunc(p.Env, func(kv string) bool { return len(kv) > 5 && kv[:5] == "TERM=" }) {
		p.Env = append(slices.Clone(p.Env), "TERM=xterm")
	}
	if c.Sandbox.Interpreter() != "" {
		p.Args = interpreted(p.Args, c.Config.GetLinux().GetResources().GetMemoryLimitInBytes())
	}
	rec := c.Record()
	if r := e.external.keeperRuntime(c); r != nil {
		return keeper.Exec{ContainerID: c.ID, Pid: rec.Pid, Process: &p, Runtime: r, Bundle: string(e.host.Paths.Container(c.ID))}, nil
	}
	return keeper.Exec{
		ContainerID: c.ID, Pid: rec.Pid, Process: &p, SeccompBPF: base.seccomp, CgroupProcs: base.groups,
	}, nil
}

func (e *Execs) execBase(c *Container) (execBase, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.exec.process == nil {
		spec, err := host.ReadSpec(e.host.Paths.Container(c.ID).Spec())
		if err != nil {
			return execBase{}, err
		}
		c.exec = c.execBaseOf(spec)
	}
	if c.exec.filtered && c.exec.seccomp == nil {
		// The launcher has compiled it for the container. Without it the exec would run with fewer limits than asked
		// for.
		b, err := os.ReadFile(e.host.Paths.Container(c.ID).Filter())
		if err != nil {
			return execBase{}, fmt.Errorf("read the container's seccomp filter: %w", err)
		}
		c.exec.seccomp = e.filters.same(b)
	}
	if c.exec.groups == nil {
		c.exec.groups = e.host.Cgroups.ProcsFiles(c.rec.Cgroup)
	}
	return c.exec, nil
}

// filters keeps one copy of each seccomp filter: nearly all containers have the same.
type filters struct {
	mu   sync.Mutex
	seen map[string][]byte
}

func (f *filters) same(b []byte) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	if have, ok := f.seen[string(b)]; ok {
		return have
	}
	if f.seen == nil || len(f.seen) >= 64 {
		f.seen = map[string][]byte{}
	}
	f.seen[string(b)] = b
	return b
}

// ExecSync runs a command in a container and returns its output and exit code.
func (e *Execs) ExecSync(ctx context.Context, r *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	if len(r.GetCmd()) == 0 {
		return nil, fault.Invalidf("exec: command is empty")
	}
	c, k, err := e.table.Running(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	if t := Seconds(r.GetTimeout()); t > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, t, timedOut{r.GetCmd(), t})
		defer cancel()
	}
	in, err := e.ExecInput(c, Command{ID: c.ID, Cmd: r.GetCmd()})
	if err != nil {
		return nil, fmt.Errorf("exec: %w", err)
	}
	most := wantedOutput(ctx)
	stdout, stderr := stdio.NewCapped(most), stdio.NewCapped(most)
	var code int32
	if k.Captures(in) {
		var exit keeper.Exit
		exit, err = k.Capture(ctx, in, stdout, stderr)
		code, err = int32(exit.Code), e.pods.Watcher.Heard(c.Sandbox, err)
	} else {
		code, err = stdio.Run(ctx, k, in, nil, stdout, stderr, nil)
	}
	if err != nil {
		return nil, err
	}
	out, errOut := stdio.Fit(stdout.Bytes, stderr.Bytes)
	return &runtimeapi.ExecSyncResponse{Stdout: out, Stderr: errOut, ExitCode: code}, nil
}

// wantedOutput is how much of each stream an answer of ExecSync is to have. A caller in this process has put the
// metadata into the context as if to send it.
func wantedOutput(ctx context.Context) int {
	values := metadata.ValueFromIncomingContext(ctx, OutputKey)
	if md, ok := metadata.FromOutgoingContext(ctx); ok && len(values) == 0 {
		values = md.Get(OutputKey)
	}
	if len(values) == 1 {
		if n, err := strconv.Atoi(values[0]); err == nil && n >= 0 {
			return min(n, stdio.MaxOutput)
		}
	}
	return stdio.MaxOutput
}

// timedOut is why a command was killed. The words are made only when they are wanted: nearly all commands are in time.
type timedOut struct {
	cmd   []string
	after time.Duration
}

func (t timedOut) Error() string { return fmt.Sprintf("command %q timed out after %v", t.cmd, t.after) }

func (timedOut) Unwrap() error { return context.DeadlineExceeded }

// execBase is what an exec takes over from its container: kept from the making of its specification, or read again
// after a restart.
type execBase struct {
	process  *specs.Process
	filtered bool     // it has a seccomp filter
	seccomp  []byte   // the filter, once an exec needed it
	groups   []string // the files of the container's cgroups, once an exec needed them

	spec *specs.Spec // all of it, until the container is started
}

// execBaseOf is what an exec takes over from its container. External runtimes keep the filter themselves.
func (c *Container) execBaseOf(spec *specs.Spec) execBase {
	base := execBase{process: spec.Process, filtered: spec.Linux.Seccomp != nil && c.Sandbox.External() == nil}
	if c.rec.State == Creating {
		base.spec = spec
	}
	return base
}

// Seconds keeps a timeout that a client meant as "for ever" from overflowing.
func Seconds(n int64) time.Duration {
	return time.Duration(min(max(n, 0), int64(365*24*time.Hour/time.Second))) * time.Second
}
