package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/agent"
	"github.com/berth-node/berth/agent/api/client"
	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/install"
	"github.com/berth-node/berth/install/upgrade"
	programs "github.com/berth-node/berth/internal/command"
)

// upgradedNode is the node whose programs are replaced: how its agent is ended and started. It is recorded with the
// upgrade.
type upgradedNode struct {
	RunDir  string        `json:"runDir"`
	Program string        `json:"program"`
	Running bool          `json:"running"`           // an agent, or a runtime, ran when the upgrade began
	API     bool          `json:"api"`               // it was an agent
	Unit    string        `json:"unit,omitempty"`    // of systemd, if it was one
	Restart string        `json:"restart,omitempty"` // a command of the shell otherwise
	Ready   time.Duration `json:"ready"`             // how long an agent may take to be ready, in nanoseconds

	in *install.Installation // nil: nothing is recorded as installed
}

// endPatience is how long an agent may take to end after SIGTERM, which waits for steps that are under way; more than
// its unit gives it.
const endPatience = time.Minute

// readyPatience is how long an agent may take to be ready, unless somebody says how long a new one may.
const readyPatience = 5 * time.Minute

// findNode says what runs in the run directory.
func findNode(ctx context.Context, runDir, restart string) (*upgradedNode, error) {
	n := &upgradedNode{RunDir: runDir, Restart: restart}
	pid := lockHolder(runDir)
	if pid == 0 {
		return n, nil
	}
	n.Running = true
	for word := range bytes.SplitSeq(procFile(pid, "cmdline"), []byte{0}) {
		n.API = n.API || string(word) == "agent"
	}
	if restart != "" {
		return n, nil
	}
	if n.Unit = unitOf(ctx, pid); n.Unit == "" {
		return nil, fmt.Errorf("the agent (process %d) is no service of systemd: say how it is started again, with --restart-command", pid)
	}
	return n, nil
}

func procFile(pid int, name string) []byte {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), name))
	if err != nil {
		return nil // it has ended
	}
	return data
}

// lockHolder is the process that has locked the run directory; 0: there is none, or the file is not about it.
func lockHolder(runDir string) int {
	path := filepath.Join(runDir, "lock")
	data, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || pid <= 1 || pid == os.Getpid() {
		return 0
	}
	lock, err := os.Stat(path)
	if err != nil {
		return 0
	}
	// A process that has ended may have given its number to another one, which does not have the file open.
	open, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range open {
		if st, err := os.Stat(fd); err == nil && os.SameFile(lock, st) {
			return pid
		}
	}
	return 0
}

// unitOf is the service whose main process it is.
func unitOf(ctx context.Context, pid int) string {
	for line := range strings.Lines(string(procFile(pid, "cgroup"))) {
		unit := filepath.Base(strings.TrimSpace(line))
		if !strings.HasSuffix(unit, ".service") {
			continue
		}
		call := programs.Call{Name: "systemctl", Args: []string{"show", "-p", "MainPID", "--value", unit}, Deadline: servicePatience}
		if out, err := call.Run(ctx); err == nil && strings.TrimSpace(out.Out) == strconv.Itoa(pid) {
			return unit
		}
	}
	return ""
}

// decodeNode is the node of an upgrade that is recorded.
func decodeNode(data json.RawMessage, in *install.Installation) (*upgradedNode, error) {
	n := &upgradedNode{}
	if err := json.Unmarshal(data, n); err != nil {
		return nil, fmt.Errorf("read how the agent is started: %w", err)
	}
	n.in = in
	return n, nil
}

// Stop ends the agent and takes its lock, without which none starts: not even one that somebody else starts again.
func (n *upgradedNode) Stop(ctx context.Context) (func(), error) {
	if n.Unit != "" {
		call := programs.Call{Name: "systemctl", Args: []string{"stop", n.Unit}, Deadline: servicePatience, Apart: true}
		if _, err := call.Run(ctx); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 3*endPatience)
	defer cancel()
	for _, pid := range n.starting() {
		if err := end(ctx, pid); err != nil {
			return nil, err
		}
	}
	for {
		lock, err := agent.Lock(n.RunDir)
		if err == nil {
			return sync.OnceFunc(func() { lock.Close() }), nil
		}
		if !errors.Is(err, agent.ErrRunning) || ctx.Err() != nil {
			return nil, errors.Join(err, ctx.Err())
		}
		if pid := lockHolder(n.RunDir); pid != 0 {
			if err := end(ctx, pid); err != nil {
				return nil, err
			}
		}
	}
}

// starting are processes of the program that are agents of this run directory, and have not come so far as to lock it.
func (n *upgradedNode) starting() []int {
	var out []int
	all, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, exe := range all {
		runs, err := os.Readlink(exe)
		pid, perr := strconv.Atoi(filepath.Base(filepath.Dir(exe)))
		// The kernel says so of a program whose name another one has now.
		if err != nil || perr != nil || strings.TrimSuffix(runs, " (deleted)") != n.Program || pid == os.Getpid() {
			continue
		}
		words := strings.Split(string(procFile(pid, "cmdline")), "\x00")
		runDir := config.DefaultRunDir
		for v := range strings.SplitSeq(string(procFile(pid, "environ")), "\x00") {
			if dir, ok := strings.CutPrefix(v, config.RunDirEnv+"="); ok {
				runDir = dir
			}
		}
		if given := runDirOf(words); given != "" {
			runDir = given
		}
		if (slices.Contains(words, "agent") || slices.Contains(words, "runtime")) && filepath.Clean(runDir) == n.RunDir {
			out = append(out, pid)
		}
	}
	return out
}

// runDirOf is the run directory that a command line says; "" when it says none.
func runDirOf(words []string) string {
	dir := ""
	f := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	f.ParseErrorsAllowlist.UnknownFlags = true
	f.SetOutput(io.Discard)
	f.StringVar(&dir, "run-dir", "", "")
	if f.Parse(words) != nil {
		return ""
	}
	return dir
}

// end ends a process, by force where it does not want to.
func end(ctx context.Context, pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("end process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("end process %d: %w", pid, err)
		}
		for until := time.Now().Add(endPatience); ; {
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			left := max(time.Until(until), 0)
			n, err := unix.Poll(p, int(min(left, time.Second)/time.Millisecond))
			if n > 0 {
				return nil
			}
			if err != nil && !errors.Is(err, unix.EINTR) {
				return fmt.Errorf("wait for the end of process %d: %w", pid, err)
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if left == 0 {
				break
			}
		}
	}
	return fmt.Errorf("process %d does not end", pid)
}

// Start starts the agent, and waits until it runs pods.
func (n *upgradedNode) Start(ctx context.Context, program string) error {
	return n.start(ctx, program, n.Ready)
}

// Again starts the agent that ran before. How long a new one may take says nothing of how fast this machine is.
func (n *upgradedNode) Again(ctx context.Context, program string) error {
	return n.start(ctx, program, max(n.Ready, readyPatience))
}

func (n *upgradedNode) start(ctx context.Context, program string, patience time.Duration) error {
	if !n.Running {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if n.Unit != "" {
		// Start returns when the service has said that it is ready (Type=notify), or could not.
		for _, args := range [][]string{{"daemon-reload"}, {"start", n.Unit}} {
			if _, err := (programs.Call{Name: "systemctl", Args: args, Apart: true}).Run(ctx); err != nil {
				return err
			}
		}
	} else if err := n.command(ctx); err != nil {
		return err
	}
	return n.ready(ctx, program, patience)
}

// asked is how often an agent is asked when nothing is heard: that it is well is told by no event.
const asked = time.Second

// ready waits until the program runs, and runs pods. patience is how long ctx lasts.
func (n *upgradedNode) ready(ctx context.Context, program string, patience time.Duration) error {
	heard, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch run directory: %w", err)
	}
	defer heard.Close()
	if err := heard.Add(n.RunDir); err != nil {
		return fmt.Errorf("watch run directory: %w", err)
	}
	tick := time.NewTicker(asked)
	defer tick.Stop()
	for {
		err := n.isReady(ctx, program)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("it is not ready within %s: %w", patience, err)
		case <-heard.Events:
		case <-tick.C:
		}
	}
}

func (n *upgradedNode) isReady(ctx context.Context, program string) error {
	pid := lockHolder(n.RunDir)
	if pid == 0 {
		return errors.New("no agent runs")
	}
	// The link leads to the file that was executed, whatever has its name now.
	runs, err := os.Stat(filepath.Join("/proc", strconv.Itoa(pid), "exe"))
	if err != nil {
		return err
	}
	is, err := os.Stat(program)
	if err != nil {
		return err
	}
	if !os.SameFile(runs, is) {
		return fmt.Errorf("process %d runs another program than %s", pid, program)
	}
	if !n.API {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return client.New(n.RunDir).Healthy(ctx)
}

// Install has the packager install a package.
func (n *upgradedNode) Install(ctx context.Context, file string) error {
	call := programs.Call{Name: "dpkg", Args: []string{"--install", file}, Deadline: servicePatience, Apart: true}
	if strings.HasSuffix(file, ".rpm") {
		call = programs.Call{Name: "rpm", Args: []string{"--upgrade", "--replacepkgs", "--oldpackage", file}, Deadline: servicePatience, Apart: true}
	}
	_, err := call.Run(ctx)
	return err
}

// Owns records what is installed now.
func (n *upgradedNode) Owns(files []upgrade.File, settled bool) error {
	if n.in == nil {
		return nil
	}
	digests := map[string]string{}
	for _, f := range files {
		digests[f.Path] = f.New
	}
	return n.in.Own(digests, settled)
}
