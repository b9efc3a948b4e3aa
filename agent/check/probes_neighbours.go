package check

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/agent/config"
)

// neighbourProbes look for who else has, or wants, what an agent takes.
func neighbourProbes(starting bool) []probe {
	return []probe{
		{"kubelet", false, "Two agents give the same memory and CPUs to pods, and take the same ports and directories.", probeKubelet},
		{"berth", starting, "One run directory has one agent: another one on it ends at once.", probeBerth},
		{"ports", starting, "The agent ends when it cannot listen on a port that its configuration names.", probePorts},
	}
}

// kubelets are the programs that are one, or have one in them.
var kubelets = []string{"kubelet", "kubelite", "k3s", "k0s", "rke2", "microk8s"}

// process is one that runs. Its program is what the kernel says of it (proc_pid_exe(5)): arguments are anybody's, and
// may be secrets.
type process struct {
	pid int
	exe string
}

func (p process) String() string { return fmt.Sprintf("process %d (%q)", p.pid, p.exe) }

// processes are those whose program has one of the names.
func (e *env) processes(names ...string) ([]process, error) {
	entries, err := os.ReadDir(e.proc)
	if err != nil {
		return nil, err
	}
	var out []process
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if exe := e.program(pid); slices.Contains(names, filepath.Base(exe)) {
			out = append(out, process{pid, exe})
		}
	}
	slices.SortFunc(out, func(a, b process) int { return a.pid - b.pid })
	return out, nil
}

// program is the path of a process's program, also of one that was replaced since; "" of what has ended, and of the
// kernel's threads.
func (e *env) program(pid int) string {
	exe, err := os.Readlink(filepath.Join(e.proc, strconv.Itoa(pid), "exe"))
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(exe, " (deleted)")
}

func probeKubelet(_ context.Context, e *env) answer {
	found, err := e.processes(kubelets...)
	if err != nil {
		return limited("cannot be looked for: %v", err)
	}
	for _, p := range found {
		return limited("runs: %s", p)
	}
	// kubelet's own port is taken by what is called otherwise: most likely one in a container, whose program cannot be
	// told by its name.
	if pid, err := e.listener(config.DefaultPort); err == nil && pid != 0 && filepath.Base(e.program(pid)) != "berth" {
		return limited("its port %d is taken by %s", config.DefaultPort, process{pid, e.program(pid)})
	}
	if pods, err := os.ReadDir(filepath.Join(e.kubelet, "pods")); err == nil && len(pods) > 0 {
		return limited("none runs; %s has %d pods of one that did", filepath.Join(e.kubelet, "pods"), len(pods))
	}
	return ok("none")
}

// holder is the process that holds a run directory's lock, 0 when none does.
func holder(runDir string) (int, error) {
	f, err := os.Open(filepath.Join(runDir, "lock"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	// A shared lock for an instant: an agent that starts now waits longer than that for its own.
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if err == nil || !errors.Is(err, unix.EWOULDBLOCK) {
		return 0, err
	}
	var text [32]byte
	n, err := f.Read(text[:])
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text[:n])))
}

func probeBerth(_ context.Context, e *env) answer {
	pid, err := holder(e.agent.RunDir)
	if err != nil {
		return limited("%s cannot be read: %v", filepath.Join(e.agent.RunDir, "lock"), err)
	}
	others, err := e.others(pid)
	if err != nil {
		return limited("others cannot be looked for: %v", err)
	}
	beside := ""
	if len(others) > 0 {
		beside = "; beside it, with directories of their own: " + strings.Join(others, ", ")
	}
	switch {
	case pid == 0:
		return ok("none runs in %s%s", e.agent.RunDir, beside)
	case e.starting && !e.service(pid):
		return missing("%s has %s, and is not the service berth%s", process{pid, e.program(pid)}, e.agent.RunDir, beside)
	}
	return ok("the agent of %s is process %d%s", e.agent.RunDir, pid, beside)
}

// service says whether a process is of the unit that an installation has.
func (e *env) service(pid int) bool {
	group, err := os.ReadFile(filepath.Join(e.proc, strconv.Itoa(pid), "cgroup"))
	return err == nil && strings.Contains(string(group), "/berth.service")
}

// others are agents with other run directories, by the locks that they have open.
func (e *env) others(but int) ([]string, error) {
	found, err := e.processes("berth")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, p := range found {
		if p.pid == but {
			continue
		}
		files, _ := filepath.Glob(filepath.Join(e.proc, strconv.Itoa(p.pid), "fd", "*"))
		for _, f := range files {
			if to, err := os.Readlink(f); err == nil && filepath.Base(to) == "lock" {
				out = append(out, fmt.Sprintf("process %d in %q", p.pid, filepath.Dir(to)))
				break
			}
		}
	}
	return out, nil
}

// probePorts listens for a moment on what the agent is going to listen on.
func probePorts(ctx context.Context, e *env) answer {
	own, err := holder(e.agent.RunDir)
	if err != nil {
		return limited("%v", err)
	}
	var free, taken []string
	for _, p := range e.agent.Listens() {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(p.Address, strconv.Itoa(int(p.Port))))
		name := fmt.Sprintf("--%s %d", p.Flag, p.Port)
		switch {
		case err == nil:
			l.Close()
			free = append(free, name)
		case !errors.Is(err, syscall.EADDRINUSE):
			taken = append(taken, fmt.Sprintf("%s: %v", name, err))
		default:
			switch pid, err := e.listener(p.Port); {
			case err != nil || pid == 0:
				taken = append(taken, name+" is taken")
			case pid == own:
				free = append(free, name+" (the agent has it)")
			default:
				taken = append(taken, fmt.Sprintf("%s is taken by %s", name, process{pid, e.program(pid)}))
			}
		}
	}
	switch {
	case len(taken) > 0 && e.starting:
		return missing("%s", strings.Join(taken, "; "))
	case len(taken) > 0:
		return limited("%s", strings.Join(taken, "; "))
	case len(free) == 0:
		return ok("none is wanted: the API is on a socket")
	}
	return ok("free: %s", strings.Join(free, ", "))
}

// listener is the process that listens on a TCP port, 0 when none does, or none that we can see.
func (e *env) listener(port int32) (int, error) {
	var sockets []string
	for _, table := range []string{"net/tcp", "net/tcp6"} {
		data, err := os.ReadFile(filepath.Join(e.proc, table))
		if err != nil && !errors.Is(err, os.ErrNotExist) { // there is no IPv6
			return 0, err
		}
		sockets = append(sockets, listening(string(data), port)...)
	}
	if len(sockets) == 0 {
		return 0, nil
	}
	files, err := filepath.Glob(filepath.Join(e.proc, "[0-9]*", "fd", "*"))
	if err != nil {
		return 0, err
	}
	for _, f := range files {
		to, err := os.Readlink(f)
		if err != nil || !slices.Contains(sockets, to) {
			continue
		}
		return strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(f))))
	}
	return 0, nil
}

// listening are the sockets of a table of /proc/net (proc_pid_net(5)) that listen on a port, as descriptors are shown
// to lead to them.
func listening(table string, port int32) []string {
	const listens = "0A" // TCP_LISTEN
	var out []string
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 10 || f[3] != listens {
			continue
		}
		_, hex, _ := strings.Cut(f[1], ":")
		if n, err := strconv.ParseUint(hex, 16, 16); err == nil && int32(n) == port {
			out = append(out, "socket:["+f[9]+"]")
		}
	}
	return out
}
