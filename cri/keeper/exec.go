package keeper

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/rlimit"
)

// Exec says what to run in a container that runs.
type Exec struct {
	ContainerID string
	Pid         int // the container's init
	Process     *specs.Process
	// SeccompBPF is the filter a container's start left in its bundle.
	SeccompBPF  []byte
	CgroupProcs []string
	// Runtime is the one that made the container in Bundle: it starts the
	// process, and knows the filter and the cgroups itself.
	Runtime *Runtime
	Bundle  string
	// Files for the process when it has no terminal; nil is /dev/null.
	Stdin, Stdout, Stderr *os.File
}

// Process is a process run by Exec. Close it when its end is of no interest
// any more, or after Wait.
type Process struct {
	Pid int
	// Console is the master of the process's terminal, nil without one.
	Console *os.File

	id   string
	conn *net.UnixConn
	once sync.Once
	done chan struct{}
	exit Exit
	err  error
}

// Exec runs a process in a container. The keeper forks it in C: no Go runtime
// starts on the way. The process is in a session of its own. A process that
// cannot be executed is an error, with the text runc users know.
func (k *Keeper) Exec(ctx context.Context, e Exec) (*Process, error) {
	p, err := k.exec(ctx, e)
	if err != nil {
		return nil, fmt.Errorf("exec in container %s: %w", e.ContainerID, err)
	}
	return p, nil
}

func (k *Keeper) exec(ctx context.Context, e Exec) (*Process, error) {
	f, err := e.fields(nil, 0)
	if err != nil {
		return nil, err
	}
	var mask uint32
	var files []*os.File
	if !e.Process.Terminal {
		for i, file := range []*os.File{e.Stdin, e.Stdout, e.Stderr} {
			if file != nil {
				mask |= 1 << i
				files = append(files, file)
			}
		}
	}
	f.u32(tagFiles, mask)
	c, m, got, err := k.peer.request(ctx, opExec, f, files...)
	if err != nil {
		return nil, err
	}
	p := &Process{Pid: int(m.u32(tagPid)), id: e.ContainerID, conn: c, done: make(chan struct{})}
	if e.Process.Terminal {
		if len(got) != 1 {
			closeAll(got)
			c.Close()
			return nil, errors.New("keeper sent no terminal")
		}
		p.Console, got = got[0], nil
	}
	closeAll(got)
	go p.read()
	return p, nil
}

// read waits for the one message there is to come.
func (p *Process) read() {
	defer close(p.done)
	m, files, err := receive(p.conn, make([]byte, 1024))
	closeAll(files)
	switch {
	case err != nil:
		p.err = gone(err)
		if errors.Is(err, net.ErrClosed) {
			p.err = errors.New("process was closed")
		}
	case m.op != opExit:
		p.err = fmt.Errorf("keeper sent unexpected operation %d", m.op)
	default:
		p.exit = exitOf(m)
		p.exit.ContainerID = p.id
	}
}

// Wait waits for the process's end.
func (p *Process) Wait(ctx context.Context) (Exit, error) {
	select {
	case <-p.done:
	case <-ctx.Done():
		return Exit{}, ctx.Err()
	}
	if p.err != nil {
		return Exit{}, fmt.Errorf("wait for process %d: %w", p.Pid, p.err)
	}
	return p.exit, nil
}

// Kill signals the whole process group. SIGKILL also reaches what the process
// started and what left its group or its session, and is tried as long as any
// of it is left.
func (p *Process) Kill(sig unix.Signal) error {
	if err := sendSignal(p.conn, sig); err != nil {
		return fmt.Errorf("kill process %d: %w", p.Pid, gone(err))
	}
	return nil
}

func sendSignal(c *net.UnixConn, sig unix.Signal) error {
	var f fields
	f.u32(tagSignal, uint32(sig))
	return send(c, opSignal, f)
}

// Resize sets the size of the process's terminal.
func (p *Process) Resize(w, h uint16) error {
	if p.Console == nil {
		return errors.New("process has no terminal")
	}
	fd, err := rawFd(p.Console)
	if err != nil {
		return err
	}
	return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: h, Col: w})
}

// Close gives the process up without ending it. What it left running when it
// ended is the container's from then on.
func (p *Process) Close() error {
	p.once.Do(func() {
		p.conn.Close()
		if p.Console != nil {
			p.Console.Close()
		}
		<-p.done
	})
	return nil
}

// fields adds those of a request to f.
func (e Exec) fields(f fields, flags uint32) (fields, error) {
	pr := e.Process
	if pr == nil || len(pr.Args) == 0 {
		return nil, errors.New("no arguments given")
	}
	if e.Runtime != nil {
		return e.runtimeFields(f)
	}
	if e.Pid <= 1 {
		return nil, fmt.Errorf("container has no process (%d)", e.Pid)
	}
	f.str(tagID, e.ContainerID)
	f.u32(tagPid, uint32(e.Pid))
	for _, p := range e.CgroupProcs {
		f.str(tagCgroup, p)
	}
	if pr.Terminal {
		flags |= flagTTY
	}
	f.u32(tagFlags, flags)
	if err := f.program(pr, e.SeccompBPF); err != nil {
		return nil, err
	}
	return f, nil
}

// program adds what a program is to have.
func (f *fields) program(pr *specs.Process, filter []byte) error {
	if s := pr.ConsoleSize; s != nil {
		f.u32(tagWidth, uint32(s.Width))
		f.u32(tagHeight, uint32(s.Height))
	}
	if err := f.strings(tagArg, pr.Args); err != nil {
		return err
	}
	if err := f.strings(tagEnv, lastWins(pr.Env)); err != nil {
		return err
	}
	f.str(tagCwd, pr.Cwd)
	f.u32(tagUID, pr.User.UID)
	f.u32(tagGID, pr.User.GID)
	var groups []byte
	for _, g := range pr.User.AdditionalGids {
		groups = binary.LittleEndian.AppendUint32(groups, g)
	}
	f.bytes(tagGroups, groups)
	if pr.User.Umask != nil {
		f.u32(tagUmask, *pr.User.Umask)
	}
	if err := f.privileges(pr); err != nil {
		return err
	}
	if len(filter) > 0 {
		f.bytes(tagSeccomp, filter)
	}
	return nil
}

// runtimeFields are what a runtime is told, which reads the process itself.
func (e Exec) runtimeFields(f fields) (fields, error) {
	f.str(tagID, e.ContainerID)
	f.str(tagBundle, e.Bundle)
	flags, err := e.Runtime.fields(&f)
	if err != nil {
		return nil, err
	}
	if e.Process.Terminal {
		flags |= flagTTY
	}
	f.u32(tagFlags, flags)
	process, err := json.Marshal(e.Process)
	if err != nil {
		return nil, fmt.Errorf("encode process: %w", err)
	}
	f.bytes(tagProcess, process)
	return f, nil
}

func (f *fields) strings(t tag, list []string) error {
	for _, s := range list {
		if strings.IndexByte(s, 0) >= 0 {
			return fmt.Errorf("%q holds a NUL byte", s)
		}
		f.str(t, s)
	}
	return nil
}

func (f *fields) privileges(pr *specs.Process) error {
	if c := pr.Capabilities; c != nil {
		b := make([]byte, 0, 5*8)
		for _, set := range [][]string{c.Bounding, c.Effective, c.Permitted, c.Inheritable, c.Ambient} {
			m, err := capMask(set)
			if err != nil {
				return err
			}
			b = binary.LittleEndian.AppendUint64(b, m)
		}
		f.bytes(tagCaps, b)
	}
	for _, r := range pr.Rlimits {
		n, err := rlimit.Kind(r.Type)
		if err != nil {
			return err
		}
		b := binary.LittleEndian.AppendUint32(nil, n)
		b = binary.LittleEndian.AppendUint64(b, r.Soft)
		b = binary.LittleEndian.AppendUint64(b, r.Hard)
		f.bytes(tagRlimit, b)
	}
	if pr.NoNewPrivileges {
		f.u32(tagNoNewPrv, 1)
	}
	if pr.ApparmorProfile != "" {
		f.str(tagAppArmor, pr.ApparmorProfile)
	}
	if pr.SelinuxLabel != "" {
		f.str(tagSELinux, pr.SelinuxLabel)
	}
	if pr.OOMScoreAdj != nil {
		f.u32(tagOOMAdj, uint32(int32(*pr.OOMScoreAdj)))
	}
	return nil
}

// lastWins drops all but the last of the variables that share a name, as
// libcontainer does for a container's first process: getenv(3) would find the
// first.
func lastWins(env []string) []string {
	last := make(map[string]int, len(env))
	name := func(s string) string {
		n, _, _ := strings.Cut(s, "=")
		return n
	}
	for i, s := range env {
		last[name(s)] = i
	}
	if len(last) == len(env) {
		return env
	}
	var out []string
	for i, s := range env {
		if last[name(s)] == i {
			out = append(out, s)
		}
	}
	return out
}
