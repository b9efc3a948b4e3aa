package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// A costed is something whose pods are started and removed one by one, to count the CPU time of each.
type costed interface {
	Name() string
	Up(ctx context.Context) error
	Down() error
	// Pod runs a pod of one container, and returns when all of it is gone. It calls running when it has been asked for,
	// which returns when the container's program runs.
	Pod(ctx context.Context, x pod, running func() error) error
	// Daemon is the process that stays, 0 without one.
	Daemon() int
}

// The classes of processes, in the order in which they are printed.
var classes = []string{
	"agent", "launcher", "init", "keeper", "program", "others", "ends of processes", "sum", "kernel threads",
}

const (
	costRoot = "/berth-cost" // the group of all subjects
	settling = 100 * time.Millisecond
)

// costs starts pods of all subjects by turns, so that what else the machine does meets all of them alike.
func (b *bench) costs(ctx context.Context, subjects []costed) (err error) {
	e, err := newExits()
	if err != nil {
		return err
	}
	defer e.close()
	defer removeGroups(costRoot)
	sums := map[string]map[string][]time.Duration{}
	var up []costed
	for _, s := range subjects {
		defer func() { err = errors.Join(err, s.Down()) }()
		if err := b.inGroup(costRoot+"/"+s.Name()+"/daemon", func() error { return s.Up(ctx) }); err != nil {
			log.Printf("%s cannot be had: %v", s.Name(), err)
			continue
		}
		if pid := s.Daemon(); pid > 0 {
			e.own(pid, s.Name())
		}
		sums[s.Name()] = map[string][]time.Duration{}
		up = append(up, s)
	}
	for i := range b.runs + 2 {
		for _, s := range up {
			used, err := b.cost(ctx, e, s, i)
			if err != nil {
				return fmt.Errorf("%s: %w", s.Name(), err)
			}
			for class, d := range used {
				if i >= 2 {
					sums[s.Name()][class] = append(sums[s.Name()][class], d)
				}
			}
		}
	}
	printCosts(up, sums)
	return ctx.Err()
}

// cost is the CPU time of one pod, by class.
func (b *bench) cost(ctx context.Context, e *exits, s costed, i int) (map[string]time.Duration, error) {
	m, err := b.markers()
	if err != nil {
		return nil, err
	}
	defer m.close()
	// In the directory that the pod mounts, so that no image has to have it.
	if err := os.Link(b.dir+"/cost", m.dir+"/cost"); err != nil {
		return nil, err
	}
	x := pod{name: fmt.Sprintf("cost-%d", i), marker: m.dir, program: "/b/cost"}
	e.own(os.Getpid(), s.Name()) // what the bench runs is the subject's, too
	e.take(s.Name(), s.Daemon())
	kernel, total, daemon, own := kernelThreads(), groupUsage(costRoot+"/"+s.Name()), processCPU(s.Daemon()), b.own
	running := func() error {
		return m.waitFor(ctx, x.name)
	}
	if err := s.Pod(ctx, x, running); err != nil {
		return nil, err
	}
	time.Sleep(settling)
	out := map[string]time.Duration{
		"agent": processCPU(s.Daemon()) - daemon,
		"sum":   groupUsage(costRoot+"/"+s.Name()) - total - (b.own - own), "kernel threads": since(kernel, kernelThreads()),
	}
	text, err := os.ReadFile(m.dir + "/" + x.name)
	if err != nil {
		return nil, err
	}
	before, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		return nil, err
	}
	for _, p := range e.take(s.Name(), s.Daemon()) {
		class := classOf(p.comm)
		if class == "program" {
			out["init"] += time.Duration(before)
			p.cpu -= time.Duration(before)
		}
		out[class] += p.cpu
	}
	rest := out["sum"]
	for _, c := range classes[:slices.Index(classes, "ends of processes")] {
		rest -= out[c]
	}
	out["ends of processes"] = rest
	return out, nil
}

// classOf is the class of a process by the name that it had in the end.
func classOf(comm string) string {
	switch {
	case comm == "cost":

		return "program"
	case comm == "berth-keeper" || strings.HasPrefix(comm, "containerd-shim") || comm == "pause":
		return "keeper"
	case comm == "exe" || comm == "runc" || comm == "crun" || strings.HasPrefix(comm, "memfd:"):
		return "launcher"
	case strings.HasPrefix(comm, "runc:["):
		return "init"
	}
	return "others"
}

func printCosts(subjects []costed, sums map[string]map[string][]time.Duration) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "CPU ms of a pod, mean\t")
	for _, s := range subjects {
		fmt.Fprintf(w, "%s\t", s.Name())
	}
	fmt.Fprintln(w)
	mean := func(s costed, class string) float64 {
		var sum time.Duration
		for _, d := range sums[s.Name()][class] {
			sum += d
		}
		return sum.Seconds() * 1000 / float64(max(1, len(sums[s.Name()]["sum"])))
	}
	for _, c := range classes {
		fmt.Fprintf(w, "%s\t", c)
		for _, s := range subjects {
			fmt.Fprintf(w, "%.2f\t", mean(s, c))
		}
		fmt.Fprintln(w)
	}
	fmt.Fprint(w, "median of the sums\t")
	for _, s := range subjects {
		fmt.Fprintf(w, "%.2f\t", median(slices.Clone(sums[s.Name()]["sum"])))
	}
	fmt.Fprintln(w)
	if len(subjects) > 0 {
		first := mean(subjects[0], "sum")
		fmt.Fprintf(w, "sum / %s\t", subjects[0].Name())
		for _, s := range subjects {
			fmt.Fprintf(w, "%.2f\t", mean(s, "sum")/first)
		}
		fmt.Fprintln(w)
	}
	w.Flush()
}

// inGroup has this process, and with it what it starts, in a group that counts CPU time.
func (b *bench) inGroup(group string, do func() error) error {
	root := accountRoot()
	if err := os.MkdirAll(root+group, 0o755); err != nil {
		return err
	}
	self := []byte(strconv.Itoa(os.Getpid()))
	own, err := ownGroup()
	if err != nil {
		return err
	}
	if err := os.WriteFile(root+group+"/cgroup.procs", self, 0); err != nil {
		return err
	}
	before := processCPU(os.Getpid())
	err = errors.Join(do(), os.WriteFile(root+own+"/cgroup.procs", self, 0))
	b.own += processCPU(os.Getpid()) - before
	return err
}

// accountRoot is the mount of the hierarchy that counts CPU time.
func accountRoot() string {
	if dir := "/sys/fs/cgroup/cpuacct"; unix.Access(dir, unix.F_OK) == nil {
		return dir
	}
	return "/sys/fs/cgroup"
}

// ownGroup is that of this process there.
func ownGroup() (string, error) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	own := "/"
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		if f[1] == "" && accountRoot() == "/sys/fs/cgroup" || slices.Contains(strings.Split(f[1], ","), "cpuacct") {
			own = f[2]
		}
	}
	return own, nil
}

// processCPU is the CPU time of all threads that a process has had. It is the scheduler's account, by the process's own
// clock.
func processCPU(pid int) time.Duration {
	if pid <= 0 {
		return 0
	}
	const sched = 2 // CPUCLOCK_SCHED of a process, see posix-timers
	var t unix.Timespec
	if unix.ClockGettime(int32(^pid<<3|sched), &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// kernelThreads is the CPU time of each of the kernel's threads so far, whomever it works for.
func kernelThreads() map[int]time.Duration {
	out := map[int]time.Duration{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		if c, err := os.ReadFile(d + "/cmdline"); err == nil && len(c) == 0 {
			if pid, err := strconv.Atoi(filepath.Base(d)); err == nil {
				out[pid] = cpu([]int{pid})
			}
		}
	}
	return out
}

// since is what they have used from before to now: those that have begun or ended meanwhile are not counted.
func since(before, now map[int]time.Duration) (sum time.Duration) {
	for pid, was := range before {
		if is, ok := now[pid]; ok && is > was {
			sum += is - was
		}
	}
	return sum
}

// waitFor returns when the file of that name has been made.
func (m *markers) waitFor(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", name, ctx.Err())
		case err := <-m.w.Errors:
			return err
		case e := <-m.w.Events:
			if filepath.Base(e.Name) == name {
				return nil
			}
		}
	}
}

// costedPeer is a peer as a costed, in groups of its own.
type costedPeer struct {
	peer

	daemon func() int
}

func (c costedPeer) Daemon() int { return c.daemon() }

func (c costedPeer) Pod(ctx context.Context, x pod, running func() error) error {
	applied := make(chan error, 1)
	go func() { applied <- c.Apply(ctx, []pod{x}) }()
	if err := errors.Join(running(), <-applied); err != nil {
		return err
	}
	if err := c.Remove(ctx, []pod{x}); err != nil {
		return err
	}
	return gone(ctx, c.peer, 10*time.Millisecond)
}

// runCosts runs the subjects that there are.
func (b *bench) runCosts(ctx context.Context, peers []string) error {
	if err := os.Link(b.bin+"/test/cost", b.dir+"/cost"); err != nil {
		if err := exec.Command("cp", b.bin+"/test/cost", b.dir+"/cost").Run(); err != nil {
			return fmt.Errorf("copy %s/test/cost, which make build-test makes: %w", b.bin, err)
		}
	}
	node := newBerth(b)
	node.group = costRoot + "/berth/node"
	other := newContainerd(b)
	other.group = costRoot + "/containerd/pods"
	all := []costed{
		costedPeer{node, func() int { return node.cmd.Process.Pid }},
		&floor{b: b}, &ociRuntime{b: b, program: "crun"}, &ociRuntime{b: b, program: "runc"},
		costedPeer{other, func() int { return other.cmd.Process.Pid }},
	}
	for i, dir := range b.also {
		n := newBerth(b)
		n.label, n.bin = filepath.Base(dir), dir
		n.group, n.bridge = costRoot+"/"+n.label+"/node", fmt.Sprintf("berthbench%d", i)
		n.cidr = fmt.Sprintf("10.%d.0.0/16", 210+i)
		all = append(all, costedPeer{n, func() int { return n.cmd.Process.Pid }})
	}
	var chosen []costed
	for _, s := range all {
		another := slices.ContainsFunc(b.also, func(dir string) bool { return filepath.Base(dir) == s.Name() })
		if another || slices.Contains(peers, s.Name()) {
			chosen = append(chosen, s)
		}
	}
	return b.costs(ctx, chosen)
}
