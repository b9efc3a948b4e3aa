package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// markers watches a fresh directory of the host for the files that containers make.
type markers struct {
	dir string
	w   *fsnotify.Watcher
}

func (b *bench) markers() (*markers, error) {
	dir, err := os.MkdirTemp(b.dir, "marks-")
	if err != nil {
		return nil, err
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	return &markers{dir, w}, w.Add(dir)
}

func (m *markers) close() { m.w.Close() }

// wait returns when n files were made, or as soon as asking for the pods has failed.
func (m *markers) wait(ctx context.Context, n int, applied <-chan error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for seen := 0; seen < n; {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d containers ran: %w", seen, n, ctx.Err())
		case err := <-m.w.Errors:
			return err
		case err := <-applied:
			if err != nil {
				return err
			}
			applied = nil // asked for; what is left is to see them run
		case e := <-m.w.Events:
			if e.Has(fsnotify.Create) {
				seen++
			}
		}
	}
	return nil
}

// gone waits until the kernel has nothing of the peer's pods.
func gone(ctx context.Context, p peer, step time.Duration) error {
	deadline := time.Now().Add(3 * time.Minute)
	for p.Traces() > 0 {
		if time.Now().After(deadline) {
			return fmt.Errorf("%d traces of pods are left", p.Traces())
		}
		time.Sleep(step)
	}
	return ctx.Err()
}

func (b *bench) onePod(ctx context.Context, p peer) error {
	var up, down []time.Duration
	for i := range b.runs + 2 {
		m, err := b.markers()
		if err != nil {
			return err
		}
		pods := []pod{{name: fmt.Sprintf("one-%d", i), marker: m.dir}}
		begin := time.Now()
		// Apply of a peer without a daemon returns only when the pod runs; its marker is what counts for all.
		applied := make(chan error, 1)
		go func() { applied <- p.Apply(ctx, pods) }()
		err = m.wait(ctx, 1, applied)
		took := time.Since(begin)
		m.close()
		if err != nil {
			return err
		}
		// podman is still at work after the process runs, and a pod that was just started is not at rest
		time.Sleep(time.Second)
		begin = time.Now()
		if err := p.Remove(ctx, pods); err != nil {
			return err
		}
		if err := gone(ctx, p, time.Millisecond); err != nil {
			return err
		}
		if i >= 2 {
			up, down = append(up, took), append(down, time.Since(begin))
		}
		time.Sleep(200 * time.Millisecond)
	}
	b.report.record(p, "one pod: asked for to process running, median", "ms", median(up))
	b.report.record(p, "one pod: deleted to nothing left, median", "ms", median(down))
	return nil
}

func (b *bench) hundred(ctx context.Context, p peer) error {
	m, err := b.markers()
	if err != nil {
		return err
	}
	defer m.close()
	var pods []pod
	for i := range b.many {
		pods = append(pods, pod{name: fmt.Sprintf("many-%d", i), marker: m.dir})
	}
	begin := time.Now()
	applied := make(chan error, 1)
	go func() { applied <- p.Apply(ctx, pods) }()
	if err := m.wait(ctx, len(pods), applied); err != nil {
		return err
	}
	b.report.record(p, fmt.Sprintf("%d pods at once: last process runs", b.many), "s", time.Since(begin).Seconds())

	time.Sleep(5 * time.Second)
	pids := p.Processes()
	b.report.record(p, fmt.Sprintf("memory at %d pods (PSS)", b.many), "MiB", pss(pids))
	before, at := cpu(pids), time.Now()
	time.Sleep(20 * time.Second)
	after := cpu(p.Processes())
	b.report.record(p, fmt.Sprintf("CPU at %d idle pods", b.many), "% of a core",
		float64(after-before)/float64(time.Since(at))*100)

	begin = time.Now()
	if err := p.Remove(ctx, pods); err != nil {
		return err
	}
	if err := gone(ctx, p, 5*time.Millisecond); err != nil {
		return err
	}
	b.report.record(p, fmt.Sprintf("%d pods deleted: nothing left", b.many), "s", time.Since(begin).Seconds())
	return nil
}

func (b *bench) idleMemory(_ context.Context, p peer) error {
	time.Sleep(3 * time.Second)
	b.report.record(p, "memory without pods (PSS)", "MiB", pss(p.Processes()))
	return nil
}

// pss sums what the processes really take: shared pages count in proportion.
func pss(pids []int) float64 {
	var kib int
	for _, pid := range pids {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "Pss:" {
				n, _ := strconv.Atoi(f[1])
				kib += n
			}
		}
	}
	return float64(kib) / 1024
}

// cpu sums the CPU time of the processes so far. The scheduler's own account is exact, where the ticks of
// /proc/PID/stat miss a process that sleeps again before a tick.
func cpu(pids []int) time.Duration {
	var sum time.Duration
	for _, pid := range pids {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		for _, t := range tasks {
			b, _ := os.ReadFile(t)
			if f := strings.Fields(string(b)); len(f) > 0 {
				ns, _ := strconv.ParseInt(f[0], 10, 64)
				sum += time.Duration(ns)
			}
		}
	}
	return sum
}

// named lists the processes that match says are meant.
func named(match func(pid int, exe string, cmdline []string) bool) []int {
	var out []int
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(d))
		exe, err := os.Readlink(d + "/exe")
		if err != nil {
			continue
		}
		c, _ := os.ReadFile(d + "/cmdline")
		if match(pid, exe, strings.Split(string(c), "\x00")) {
			out = append(out, pid)
		}
	}
	return out
}

// linksOf counts the interfaces on a bridge.
func linksOf(bridge string) int {
	ports, _ := filepath.Glob("/sys/class/net/" + bridge + "/brif/*")
	return len(ports)
}

// groupsBelow counts the cgroups at that depth below root in the hierarchies that matter.
func groupsBelow(patterns ...string) int {
	n := 0
	for _, p := range patterns {
		for _, mount := range []string{
			"/sys/fs/cgroup/memory", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/pids",
			"/sys/fs/cgroup",
		} {
			m, _ := filepath.Glob(mount + p)
			n += len(m)
		}
	}
	return n
}
