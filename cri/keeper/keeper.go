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
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/plain"
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
	id       string
	peer     peer
	greeting greeting
	lines    lines
	quiet    atomic.Bool
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
	k := &Keeper{id: id, peer: peer{dir, ident}}
	if k.greeting, err = k.peer.hello(ctx); err != nil {
		return nil, fmt.Errorf("open keeper %s: %w", id, err)
	}
	return k, nil
}

// ID returns the sandbox id the keeper was started or opened with.
func (k *Keeper) ID() string { return k.id }

// Dir returns the keeper's directory.
func (k *Keeper) Dir() string { return k.peer.dir }

// Pid returns the process ID of the keeper.
func (k *Keeper) Pid() int { return k.peer.ident.pid }

// Pid1 returns the process ID of process 1 of the PID namespace that the pod's
// containers share, 0 when they share none.
func (k *Keeper) Pid1() int { return k.greeting.pid1 }

// NSPath returns the path of a namespace of the pod: "ipc", "uts", "net" are
// the keeper's own; "pid" is that of the pod's process 1, or the keeper's (the
// host's) when the pod shares none. The path is good while the keeper lives.
func (k *Keeper) NSPath(kind string) string {
	pid := k.peer.ident.pid
	if kind == "pid" && k.greeting.pid1 != 0 {
		pid = k.greeting.pid1
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
	// Plain is what the keeper makes an ordinary container of, without libcontainer; nil is libcontainer. That also
	// starts what turns out not to be ordinary, and Left is told why.
	Plain *plain.Start
	Left  func(why string)
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
	if c.Plain != nil {
		f.plain(c.Plain)
	}
	m, err := k.peer.call(ctx, opRun, f)
	if err != nil {
		return 0, fmt.Errorf("run container %s: %w", c.ID, err)
	}
	if why := m.text(tagText); why != "" && c.Left != nil {
		c.Left(why)
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
	if _, err := k.peer.call(ctx, opSignal, f); err != nil {
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
	err := k.peer.callSoon(opForget, f)
	if errors.Is(err, ErrGone) || errors.Is(err, ErrSilent) {
		err = Forget(k.peer.dir, containerID)
	}
	if err != nil {
		return fmt.Errorf("forget container %s: %w", containerID, err)
	}
	return nil
}

// ReopenLog makes the keeper open the log's path again, after somebody else
// renamed the file.
func (k *Keeper) ReopenLog(containerID string) error {
	var f fields
	f.str(tagID, containerID)
	if err := k.peer.callSoon(opReopen, f); err != nil {
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
	if err := k.peer.callSoon(opResize, f); err != nil {
		return fmt.Errorf("resize terminal of %s: %w", containerID, err)
	}
	return nil
}

// Stop ends the keeper, and whatever process of the pod is left, and returns
// when it has ended. It is idempotent.
func (k *Keeper) Stop(ctx context.Context) error {
	pidfd, err := k.peer.ident.open()
	if errors.Is(err, ErrGone) {
		return Kill(k.peer.dir) // what it left behind
	}
	if err != nil {
		return fmt.Errorf("stop keeper %s: %w", k.id, err)
	}
	defer pidfd.Close()
	k.lines.close()
	if _, err := k.peer.call(ctx, opStop, nil); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("stop keeper %s: %w", k.id, err)
		}
		// It hung up in the middle of the answer, or it is stuck: the outcome
		// is the same, it has to go.
		if err := Kill(k.peer.dir); err != nil {
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
	_, err = os.Lstat(filepath.Join(k.peer.dir, "keeper.sock"))
	k.quiet.Store(errors.Is(err, fs.ErrNotExist))
	return nil
}

// Quiet says that Stop has ended the keeper in order: everything that descended
// from it had ended before. It is false after one that was killed.
func (k *Keeper) Quiet() bool { return k.quiet.Load() }

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
