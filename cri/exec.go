package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/metadata"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"github.com/berth-node/berth/cri/keeper"
	"github.com/berth-node/berth/cri/stream"
)

const (
	// maxOutput is what an answer of ExecSync holds of both streams together. The rest is read and dropped, so that the command
	// ends. Clients of the CRI take messages of 16 MiB, and the answer has a few bytes beside the output.
	maxOutput = 16<<20 - 1<<10
	// outputKey in the metadata of an ExecSync says how much of each stream its caller has use for, in bytes. A probe uses 10 KiB, and of
	// one that writes without end there is to be no more in memory. The CRI has no field for it.
	outputKey = "berth-exec-output"
	// drain is how long more output is waited for when the command has ended, but somebody it left behind holds the pipe.
	drain = time.Second
	// dead is how long the end of a command that was killed is waited for.
	dead = 10 * time.Second
)

// execCommand is what an exec runs.
type execCommand struct {
	id  string
	cmd []string
	tty bool
}

// execInput builds an exec from the container's own process: same user, capabilities, filter and cgroup.
func (cs *containers) execInput(c *container, x execCommand) (keeper.Exec, error) {
	base, err := cs.execBase(c)
	if err != nil {
		return keeper.Exec{}, err
	}
	p := *base.process
	p.Args, p.Terminal = x.cmd, x.tty
	if x.tty && !slices.ContainsFunc(p.Env, func(kv string) bool { return len(kv) > 5 && kv[:5] == "TERM=" }) {
		p.Env = append(slices.Clone(p.Env), "TERM=xterm")
	}
	if c.sandbox.interpreter() != "" {
		p.Args = interpreted(p.Args, c.cfg.GetLinux().GetResources().GetMemoryLimitInBytes())
	}
	rec := c.record()
	if r := cs.keeperRuntime(c); r != nil {
		return keeper.Exec{ContainerID: c.id, Pid: rec.Pid, Process: &p, Runtime: r, Bundle: cs.paths.container(c.id)}, nil
	}
	return keeper.Exec{
		ContainerID: c.id, Pid: rec.Pid, Process: &p, SeccompBPF: base.seccomp, CgroupProcs: base.groups,
	}, nil
}

func (cs *containers) execBase(c *container) (execBase, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.exec.process == nil {
		spec, err := readSpec(cs.paths.spec(c.id))
		if err != nil {
			return execBase{}, err
		}
		c.exec = c.execBaseOf(spec)
	}
	if c.exec.filtered && c.exec.seccomp == nil {
		// The launcher has compiled it for the container. Without it the exec would run with fewer limits than asked for.
		b, err := os.ReadFile(cs.paths.filter(c.id))
		if err != nil {
			return execBase{}, fmt.Errorf("read the container's seccomp filter: %w", err)
		}
		c.exec.seccomp = cs.filters.same(b)
	}
	if c.exec.groups == nil {
		c.exec.groups = cs.cgroups.ProcsFiles(c.rec.Cgroup)
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

// execSync runs a command in a container and returns its output and exit code.
func (cs *containers) execSync(ctx context.Context, r *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	if len(r.GetCmd()) == 0 {
		return nil, invalidf("exec: command is empty")
	}
	c, k, err := cs.running(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	if t := seconds(r.GetTimeout()); t > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, t, timedOut{r.GetCmd(), t})
		defer cancel()
	}
	in, err := cs.execInput(c, execCommand{id: c.id, cmd: r.GetCmd()})
	if err != nil {
		return nil, fmt.Errorf("exec: %w", err)
	}
	most := wantedOutput(ctx)
	stdout, stderr := &capped{most: most}, &capped{most: most}
	var code int32
	if k.Captures(in) {
		var exit keeper.Exit
		exit, err = k.Capture(ctx, in, stdout, stderr)
		code, err = int32(exit.Code), cs.pods.heard(c.sandbox, err)
	} else {
		code, err = runExec(ctx, k, in, nil, stdout, stderr, nil)
	}
	if err != nil {
		return nil, err
	}
	out, errOut := fit(stdout.b, stderr.b)
	return &runtimeapi.ExecSyncResponse{Stdout: out, Stderr: errOut, ExitCode: code}, nil
}

// wantedOutput is how much of each stream an answer of ExecSync is to have. A caller in this process has put the metadata into the context
// as if to send it.
func wantedOutput(ctx context.Context) int {
	values := metadata.ValueFromIncomingContext(ctx, outputKey)
	if md, ok := metadata.FromOutgoingContext(ctx); ok && len(values) == 0 {
		values = md.Get(outputKey)
	}
	if len(values) == 1 {
		if n, err := strconv.Atoi(values[0]); err == nil && n >= 0 {
			return min(n, maxOutput)
		}
	}
	return maxOutput
}

// timedOut is why a command was killed. The words are made only when they are wanted: nearly all commands are in time.
type timedOut struct {
	cmd   []string
	after time.Duration
}

func (t timedOut) Error() string { return fmt.Sprintf("command %q timed out after %v", t.cmd, t.after) }

func (timedOut) Unwrap() error { return context.DeadlineExceeded }

// fit cuts two outputs so that one answer holds both. One that takes less than its half leaves the rest to the other.
func fit(a, b []byte) ([]byte, []byte) {
	const half = maxOutput / 2
	return a[:min(len(a), max(half, maxOutput-len(b)))], b[:min(len(b), max(half, maxOutput-len(a)))]
}

// capped keeps the first bytes, and takes all.
type capped struct {
	b    []byte
	most int
}

// chunks are what output is read into: most commands of probes say little or nothing, and a new buffer for each of their streams would
// keep the garbage collector busier than all else that the agent does for them.
var chunks = sync.Pool{New: func() any { return new([8 << 10]byte) }}

// ReadFrom reads all that there is.
func (c *capped) ReadFrom(r io.Reader) (n int64, err error) {
	buf := chunks.Get().(*[8 << 10]byte) // nothing else is in there
	defer chunks.Put(buf)
	for {
		got, err := r.Read(buf[:])
		_, _ = c.Write(buf[:got])
		n += int64(got)
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

func (c *capped) Write(p []byte) (int, error) {
	c.b = append(c.b, p[:min(len(p), c.most-len(c.b))]...)
	return len(p), nil
}

// runExec runs a process and copies its streams, nil ones being /dev/null. When ctx ends, the cause is returned and the whole process
// group killed; but when a client has gone, the process only loses its streams: a terminal is hung up, and who reads or writes a pipe
// finds it closed.
func runExec(ctx context.Context, k podKeeper, x keeper.Exec, stdin io.Reader, stdout, stderr io.Writer, resize <-chan remotecommand.TerminalSize) (int32, error) {
	var s stdio
	defer s.close()
	if !x.Process.Terminal {
		if err := s.pipes(&x, stdin, stdout, stderr); err != nil {
			return 0, err
		}
	}
	p, err := k.Exec(ctx, x)
	s.closeTheirs()
	if err != nil {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		return 0, err
	}
	defer p.Close()
	if x.Process.Terminal {
		s.console(p.Console, stdin, stdout)
		go resizeAll(ctx, p, resize)
	}
	s.start()
	exit, err := p.Wait(ctx)
	if err != nil && errors.Is(context.Cause(ctx), stream.ErrGone) {
		return 0, stream.ErrGone
	}
	if err != nil && ctx.Err() != nil {
		killed := p.Kill(unix.SIGKILL)
		// So that no zombie is left: the group is dead, this does not take long.
		dying, cancel := context.WithTimeout(context.WithoutCancel(ctx), dead)
		defer cancel()
		_, _ = p.Wait(dying)
		return 0, errors.Join(context.Cause(ctx), killed)
	}
	if err != nil {
		return 0, err
	}
	s.finish(ctx)
	return int32(exit.Code), nil
}

// copyAll is io.Copy, which would rather have the file write itself, with a buffer of its own.
func copyAll(to io.Writer, from *os.File) (int64, error) {
	if c, ok := to.(*capped); ok {
		return c.ReadFrom(from)
	}
	return io.Copy(to, from)
}

// input copies a client's input, then ends it. What is not wanted any more is read all the same: a message that nobody takes holds up
// all the others of its connection.
func input(to io.WriteCloser, from io.Reader) {
	_, err := io.Copy(to, from)
	to.Close()
	if err != nil {
		_, _ = io.Copy(io.Discard, from)
	}
}

func resizeAll(ctx context.Context, p interface{ Resize(w, h uint16) error }, sizes <-chan remotecommand.TerminalSize) {
	for {
		select {
		case <-ctx.Done():
			return
		case s, ok := <-sizes:
			if !ok {
				return
			}
			if p.Resize(s.Width, s.Height) != nil {
				return // the terminal is gone
			}
		}
	}
}

// stdio is our ends of the streams of an exec, and the copying between them and the client.
type stdio struct {
	ours, theirs []*os.File
	readers      []*os.File // which output comes from
	copies       []func()
	running      chan struct{}
	left         int
}

func (s *stdio) pipes(x *keeper.Exec, stdin io.Reader, stdout, stderr io.Writer) error {
	if stdin != nil {
		r, w, err := pipe(false)
		if err != nil {
			return err
		}
		x.Stdin = r
		s.theirs, s.ours = append(s.theirs, r), append(s.ours, w)
		// Not waited for: the client may keep its end open for as long as it likes.
		go input(w, stdin)
	}
	for _, o := range []struct {
		to   io.Writer
		file **os.File
	}{{stdout, &x.Stdout}, {stderr, &x.Stderr}} {
		if o.to == nil {
			continue
		}
		r, w, err := pipe(true)
		if err != nil {
			return err
		}
		*o.file = w
		s.theirs, s.ours = append(s.theirs, w), append(s.ours, r)
		s.output(r, o.to)
	}
	return nil
}

// pipe makes a pipe of which only our end does not block. The other end goes to a program, and few are made for output that
// fails because a reader is slow; os.Pipe makes both ends alike.
func pipe(readIsOurs bool) (r, w *os.File, err error) {
	var fd [2]int
	if err := unix.Pipe2(fd[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	ours := fd[1]
	if readIsOurs {
		ours = fd[0]
	}
	if err := unix.SetNonblock(ours, true); err != nil {
		unix.Close(fd[0])
		unix.Close(fd[1])
		return nil, nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd[0]), "|0"), os.NewFile(uintptr(fd[1]), "|1"), nil
}

func (s *stdio) console(c *os.File, stdin io.Reader, stdout io.Writer) {
	s.ours = append(s.ours, c)
	if stdin != nil {
		go input(keepOpen{c}, stdin)
	}
	if stdout == nil {
		stdout = io.Discard
	}
	s.output(c, stdout)
}

// keepOpen is a terminal, whose output goes on after its input: both are one file.
type keepOpen struct{ io.Writer }

func (keepOpen) Close() error { return nil }

func (s *stdio) output(from *os.File, to io.Writer) {
	s.readers = append(s.readers, from)
	s.copies = append(s.copies, func() {
		_, err := copyAll(to, from)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = copyRest(to, from)
		}
		if err != nil {
			// The client is gone. Without a reader the command is told by SIGPIPE.
			from.Close()
		}
	})
}

func (s *stdio) start() {
	s.running, s.left = make(chan struct{}, len(s.copies)), len(s.copies)
	for _, c := range s.copies {
		go func() {
			c()
			s.running <- struct{}{}
		}()
	}
}

// finish waits for the output there is. Processes the command has left behind may hold its pipes open for ever: after a while only what
// is in the pipes by then is copied, however long the client takes for it.
func (s *stdio) finish(ctx context.Context) {
	timeout := time.After(drain)
	for s.left > 0 {
		select {
		case <-s.running:
			s.left--
		case <-timeout:
			for _, f := range s.readers {
				if f.SetReadDeadline(time.Now()) != nil {
					return // a terminal that cannot be waited for
				}
			}
		case <-ctx.Done():
			return
		}
	}
}

// copyRest copies what is in a pipe or terminal now.
func copyRest(to io.Writer, from *os.File) error {
	raw, err := from.SyscallConn()
	if err != nil {
		return err
	}
	left, failed := 0, error(nil)
	if err := raw.Control(func(fd uintptr) { left, failed = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }); err != nil || failed != nil {
		return errors.Join(err, failed)
	}
	buf := chunks.Get().(*[8 << 10]byte) // nothing else is in there
	defer chunks.Put(buf)
	for left > 0 {
		n := 0
		// Not by the file, whose deadline has passed.
		if err := raw.Control(func(fd uintptr) { n, failed = unix.Read(int(fd), buf[:min(left, len(buf))]) }); err != nil {
			return err
		}
		switch {
		case errors.Is(failed, unix.EINTR):
			continue
		case failed != nil || n == 0:
			return failed
		}
		left -= n
		if _, err := to.Write(buf[:n]); err != nil {
			return err
		}
	}
	return nil
}

func (s *stdio) closeTheirs() {
	for _, f := range s.theirs {
		f.Close()
	}
	s.theirs = nil
}

// close ends the copies, and waits for them: what they write to is the caller's again.
func (s *stdio) close() {
	s.closeTheirs()
	for _, f := range s.ours {
		f.Close()
	}
	for ; s.left > 0; s.left-- {
		<-s.running
	}
}

// exitError is how the streaming server wants to be told a code that is not 0.
func exitError(code int32) error {
	if code == 0 {
		return nil
	}
	return utilexec.CodeExitError{Err: fmt.Errorf("command terminated with exit code %d", code), Code: int(code)}
}
