// Package keeper is the client of the keeper: the one small process of a pod
// sandbox that holds the pod's namespaces, is the parent of its containers,
// copies their output into logs, and records how they ended. A keeper outlives
// the agent; whatever it learned while nobody listened is in its directory.
//
// The directory of a keeper holds
//
//	keeper.lock  held with flock(2) for as long as the keeper lives
//	keeper.pid   pid, start time and boot ID
//	keeper.sock  where it listens
//	c/<id>       one record a container: launching, running, failed
//	exit/<id>    one record a container that has ended
package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// ErrGone says that the keeper is not alive any more. Its records still are.
var ErrGone = errors.New("keeper is gone")

// ErrNotFound says that the keeper has no such container running. The error
// that wraps it says what became of the container, as far as it is known.
var ErrNotFound = errors.New("container does not run")

// Keeper is a handle on a live keeper. Each call makes a connection of its own,
// but that of a captured command is kept for the next one: probes are asked all
// the time. It closes itself with the handle, which so needs no care when either
// side dies.
type Keeper struct {
	id    string
	dir   string
	ident identity
	pid1  int
	// version is that of the wire format the keeper knows.
	version uint32
	idle    atomic.Pointer[line]
	quiet   atomic.Bool
}

// Open finds the live keeper of a directory, after the agent was restarted.
// It returns ErrGone when there is none.
//
// ErrGone is certain. Any other error, [ErrSilent] among them, says that the keeper
// may live, and could not be asked.
func Open(ctx context.Context, id, dir string) (*Keeper, error) {
	ident, err := findIdentity(ctx, dir)
	if err != nil {
		return nil, fmt.Errorf("open keeper %s: %w", id, err)
	}
	k := &Keeper{id: id, dir: dir, ident: ident}
	if err := k.hello(ctx); err != nil {
		return nil, fmt.Errorf("open keeper %s: %w", id, err)
	}
	return k, nil
}

func (k *Keeper) hello(ctx context.Context) error {
	m, err := k.call(ctx, opHello, nil)
	if err == nil {
		k.pid1, k.version = int(m.u32(tagPid1)), m.u32(tagVersion)
	}
	return err
}

// ID returns the sandbox id the keeper was started or opened with.
func (k *Keeper) ID() string { return k.id }

// Dir returns the keeper's directory.
func (k *Keeper) Dir() string { return k.dir }

// Pid returns the process ID of the keeper.
func (k *Keeper) Pid() int { return k.ident.pid }

// Pid1 returns the process ID of process 1 of the PID namespace that the pod's
// containers share, 0 when they share none.
func (k *Keeper) Pid1() int { return k.pid1 }

// NSPath returns the path of a namespace of the pod: "ipc", "uts", "net" are
// the keeper's own; "pid" is that of the pod's process 1, or the keeper's (the
// host's) when the pod shares none. The path is good while the keeper lives.
func (k *Keeper) NSPath(kind string) string {
	pid := k.ident.pid
	if kind == "pid" && k.pid1 != 0 {
		pid = k.pid1
	}
	return "/proc/" + strconv.Itoa(pid) + "/ns/" + kind
}

// Container says what to run and what to do with its output.
type Container struct {
	ID string
	// Bundle is a directory with a config.json of the OCI runtime spec. A
	// compiled seccomp filter is left there as seccomp.bpf, for Exec.
	Bundle string
	// StateDir is libcontainer's root: volatile, one directory a container.
	StateDir string
	// LogPath is where output goes in the CRI log format; "" drops it. A log
	// that would grow over LogMaxSize (0 is no limit) is renamed to
	// <path>.<timestamp>, and no more than LogMaxFiles are kept, the current
	// one among them.
	LogPath     string
	LogMaxSize  int64
	LogMaxFiles int
	// Stdin is a pipe that stays open when nobody is attached; with StdinOnce
	// it is closed when the first attacher leaves.
	TTY, Stdin, StdinOnce bool
	// MemoryCgroup is the directory whose oom_kill counter is read at exit.
	MemoryCgroup string
	// PIDNamespace is the path of a PID namespace that others are in already,
	// and that the container joins; "" is none. While it is started, those of
	// them that Traces are frozen.
	PIDNamespace string
	// Traces says that its processes may trace all that they see
	// (CAP_SYS_PTRACE without a user namespace), and Freezer is the directory
	// of its cgroup with freezer.state or cgroup.freeze; "" where the machine
	// has none, and then nothing is started beside it in its PID namespace.
	Traces  bool
	Freezer string
	// Runtime makes the container instead of libcontainer; nil is libcontainer.
	Runtime *Runtime
}

// Runtime is another OCI runtime: an executable with runc's command line.
type Runtime struct {
	// Command is what all its commands begin with: the path of the executable
	// and its global arguments.
	Command []string
	// CgroupProcs are the cgroup.procs files it is started in, of hierarchies
	// in which it does not place its containers itself. In the others it is
	// where launchers are.
	CgroupProcs []string
	// CgroupV1 hides the v2 side of a hybrid cgroup layout from it.
	CgroupV1 bool
}

func (r *Runtime) fields(f *fields) (flags uint32, err error) {
	if err := f.strings(tagRuntime, r.Command); err != nil {
		return 0, err
	}
	for _, p := range r.CgroupProcs {
		f.str(tagCgroup, p)
	}
	if r.CgroupV1 {
		flags = flagCgroupV1
	}
	return flags, nil
}

// Run creates and starts a container through libcontainer, or through the
// runtime it names, and returns the process ID of its init. A container that runs or has run already is left
// alone and its pid returned, so a Run whose answer was lost can be sent again.
func (k *Keeper) Run(ctx context.Context, c Container) (int, error) {
	if err := checkID(c.ID); err != nil {
		return 0, fmt.Errorf("run container: %w", err)
	}
	var f fields
	f.str(tagID, c.ID)
	f.str(tagBundle, c.Bundle)
	f.str(tagState, c.StateDir)
	f.str(tagLogPath, c.LogPath)
	f.u64(tagLogMax, uint64(max(c.LogMaxSize, 0)))
	f.u32(tagLogFiles, uint32(max(c.LogMaxFiles, 0)))
	var flags uint32
	for bit, on := range map[uint32]bool{flagTTY: c.TTY, flagStdin: c.Stdin, flagStdinOnce: c.StdinOnce} {
		if on {
			flags |= bit
		}
	}
	if c.Runtime != nil {
		more, err := c.Runtime.fields(&f)
		if err != nil {
			return 0, fmt.Errorf("run container %s: %w", c.ID, err)
		}
		flags |= more
	}
	f.u32(tagFlags, flags)
	f.str(tagMemCG, c.MemoryCgroup)
	if c.PIDNamespace != "" {
		f.str(tagPIDNS, c.PIDNamespace)
	}
	if c.Traces {
		f.str(tagFreezer, c.Freezer)
	}
	m, err := k.call(ctx, opRun, f)
	if err != nil {
		return 0, fmt.Errorf("run container %s: %w", c.ID, err)
	}
	return int(m.u32(tagPid)), nil
}

// Signal sends a signal to the init of a container. The keeper is its parent,
// so the pid cannot have been taken by another process. ErrNotFound says that
// the container does not run. SIGKILL also ends a Run that is still under way.
func (k *Keeper) Signal(ctx context.Context, containerID string, sig unix.Signal) error {
	var f fields
	f.str(tagID, containerID)
	f.u32(tagSignal, uint32(sig))
	if _, err := k.call(ctx, opSignal, f); err != nil {
		return fmt.Errorf("signal container %s: %w", containerID, err)
	}
	return nil
}

// Forget drops the exit record and the state of a container that was removed.
// It works while the keeper is dead or does not answer, too, and on a container
// it never had.
func (k *Keeper) Forget(containerID string) error {
	if err := checkID(containerID); err != nil {
		return err
	}
	var f fields
	f.str(tagID, containerID)
	err := k.callSoon(opForget, f)
	if errors.Is(err, ErrGone) || errors.Is(err, ErrSilent) {
		err = Forget(k.dir, containerID)
	}
	if err != nil {
		return fmt.Errorf("forget container %s: %w", containerID, err)
	}
	return nil
}

// ReopenLog makes the keeper open the log's path anew, after somebody else
// renamed the file.
func (k *Keeper) ReopenLog(containerID string) error {
	var f fields
	f.str(tagID, containerID)
	if err := k.callSoon(opReopen, f); err != nil {
		return fmt.Errorf("reopen log of %s: %w", containerID, err)
	}
	return nil
}

// Resize sets the size of a container's terminal.
func (k *Keeper) Resize(containerID string, w, h uint16) error {
	var f fields
	f.str(tagID, containerID)
	f.u32(tagWidth, uint32(w))
	f.u32(tagHeight, uint32(h))
	if err := k.callSoon(opResize, f); err != nil {
		return fmt.Errorf("resize terminal of %s: %w", containerID, err)
	}
	return nil
}

// Stop ends the keeper, and whatever process of the pod is left, and returns
// when it has ended. It is idempotent.
func (k *Keeper) Stop(ctx context.Context) error {
	pidfd, err := k.ident.open()
	if errors.Is(err, ErrGone) {
		return Kill(k.dir) // what it left behind
	}
	if err != nil {
		return fmt.Errorf("stop keeper %s: %w", k.id, err)
	}
	defer pidfd.Close()
	if l := k.idle.Swap(nil); l != nil {
		l.Close()
	}
	if _, err := k.call(ctx, opStop, nil); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("stop keeper %s: %w", k.id, err)
		}
		// It hung up in the middle of the answer, or it is stuck: the outcome
		// is the same, it has to go.
		if err := Kill(k.dir); err != nil {
			return fmt.Errorf("stop keeper %s: %w", k.id, err)
		}
	}
	// It has said that it ends, and may be stopped before it has.
	wait, cancel := context.WithTimeout(ctx, dying)
	defer cancel()
	if err := waitReadable(wait, pidfd); err != nil {
		return fmt.Errorf("stop keeper %s: %w", k.id, err)
	}
	// It was listening a moment ago, and takes its socket away once it has no child any more.
	_, err = os.Lstat(filepath.Join(k.dir, "keeper.sock"))
	k.quiet.Store(errors.Is(err, fs.ErrNotExist))
	return nil
}

// Quiet says that Stop has ended the keeper in order: everything that descended
// from it had ended before. It is false after one that was killed.
func (k *Keeper) Quiet() bool { return k.quiet.Load() }

// dial connects to a keeper's socket. The directory may be longer than a
// socket address (108 bytes), so the path goes through a descriptor.
func dial(ctx context.Context, dir string) (*net.UnixConn, error) {
	path := filepath.Join(dir, "keeper.sock")
	if len(path) >= 108 {
		d, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		defer d.Close()
		path = "/proc/self/fd/" + strconv.Itoa(int(d.Fd())) + "/keeper.sock"
	}
	connect := func() (*net.UnixConn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, "unixpacket", path)
		for wait, waited := time.Millisecond, time.Duration(0); errors.Is(err, unix.EAGAIN) && waited < answer; wait = min(2*wait, 100*time.Millisecond) {
			// Its queue of connections is full: unlike TCP, the kernel says so.
			waited += wait
			select {
			case <-ctx.Done():
				return nil, err
			case <-time.After(wait):
			}
			c, err = d.DialContext(ctx, "unixpacket", path)
		}
		if err != nil {
			return nil, err
		}
		return c.(*net.UnixConn), nil
	}
	c, err := connect()
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
		return relisten(ctx, dir, connect)
	}
	return c, err
}

// call does one request on a connection of its own.
func (k *Keeper) call(ctx context.Context, o op, f fields) (message, error) {
	c, m, files, err := k.request(ctx, o, f)
	if err != nil {
		return message{}, err
	}
	closeAll(files)
	c.Close()
	return m, nil
}

// callSoon is for requests that a keeper answers at once, or never.
func (k *Keeper) callSoon(o op, f fields) error {
	_, err := k.call(context.Background(), o, f)
	return err
}

// request sends a request and reads its first answer; the connection stays
// open for what follows.
func (k *Keeper) request(ctx context.Context, o op, f fields, files ...*os.File) (*net.UnixConn, message, []*os.File, error) {
	c, err := k.dial(ctx)
	if err != nil {
		return nil, message{}, nil, err
	}
	// A deadline in the past wakes a blocked read; it is cleared after.
	wake := func() { _ = c.SetDeadline(time.Unix(1, 0)) }
	watched := k.guard(o, c, wake)
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { wake(); close(woken) })
	m, got, err := exchange(c, o, f, files)
	silent := watched()
	switch {
	case err == nil:
	case silent || errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil:
		err = ErrSilent
	case errors.Is(err, ErrGone):
		err = k.ended()
	}
	if !stop() {
		<-woken // or it could end what is sent below
		closeAll(got)
		got, err = nil, ctx.Err()
	}
	if o == opExec && err != nil && (errors.Is(err, ErrSilent) || ctx.Err() != nil) {
		// It may run, but the caller is told that it does not.
		_ = c.SetDeadline(time.Now().Add(time.Second))
		_ = sendSignal(c, unix.SIGKILL)
	}
	if err != nil {
		c.Close()
		return nil, message{}, nil, err
	}
	return c, m, got, nil
}

func exchange(c *net.UnixConn, o op, f fields, files []*os.File) (message, []*os.File, error) {
	if err := send(c, o, f, files...); err != nil {
		return message{}, nil, gone(err)
	}
	m, got, err := receive(c, make([]byte, 4096))
	if err != nil {
		return message{}, nil, gone(err)
	}
	switch m.op {
	case opOK:
		return m, got, nil
	case opError:
		closeAll(got)
		return message{}, nil, m.failure()
	}
	closeAll(got)
	return message{}, nil, fmt.Errorf("keeper answered with unexpected operation %d", m.op)
}

// failure is what an opError says.
func (m message) failure() error {
	if unix.Errno(m.u32(tagStatus)) == unix.ESRCH {
		return fmt.Errorf("%w: %s", ErrNotFound, m.text(tagText))
	}
	return errors.New(m.text(tagText))
}

// gone turns the ways in which a socket says that its other end died into one.
func gone(err error) error {
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, io.EOF) {
		return ErrGone
	}
	return err
}

// checkID refuses what cannot be a file name in the keeper's directory.
func checkID(id string) error {
	if id == "" || len(id) > 128 || id[0] == '.' {
		return fmt.Errorf("container id %q is not valid", id)
	}
	for _, c := range []byte(id) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-', c == '.', c == '+':
		default:
			return fmt.Errorf("container id %q is not valid", id)
		}
	}
	return nil
}
