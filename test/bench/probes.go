package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// prober is a peer that probes its pods itself. A bare runtime does not: there kubelet does, which is not part of the
// comparison.
type prober interface {
	// ApplyProbed is Apply of pods that run a program and have a readiness probe, which is what the manifest's field
	// holds.
	ApplyProbed(pods []pod, program, probe string) error
	// Usage is the CPU time that the peer and all its pods have used.
	Usage() (agent, pods time.Duration)
}

// probes measures what it costs to probe many pods each second, the pods being idle otherwise.
func (b *bench) probes(ctx context.Context, p peer) error {
	pr, ok := p.(prober)
	if !ok {
		return nil
	}
	for _, kind := range []struct {
		name    string
		program string
		probe   string
		server  bool // is in the pods and does not count
	}{
		{"exec", "sleep 1000000", `{exec: {command: ["true"]}, periodSeconds: 1}`, false},
		{"httpGet", "httpd -f -p 8080 -h /b", `{httpGet: {port: 8080, path: /index.html}, periodSeconds: 1}`, true},
	} {
		agent, pods, err := b.probed(ctx, p, pr, kind.program, kind.probe)
		if err != nil {
			return err
		}
		what := fmt.Sprintf("CPU of %d pods with a 1 s %s probe", b.many, kind.name)
		b.report.record(p, what+", agent", "% of a core", agent)
		if !kind.server {
			b.report.record(p, what+", agent and pods", "% of a core", agent+pods)
		}
	}
	return nil
}

func (b *bench) probed(ctx context.Context, p peer, pr prober, program, probe string) (agent, inPods float64,
	err error,
) {
	m, err := b.markers()
	if err != nil {
		return 0, 0, err
	}
	defer m.close()
	if err := os.WriteFile(m.dir+"/index.html", []byte("ok\n"), 0o644); err != nil {
		return 0, 0, err
	}
	var pods []pod
	for i := range b.many {
		pods = append(pods, pod{name: fmt.Sprintf("probed-%d", i), marker: m.dir})
	}
	applied := make(chan error, 1)
	go func() { applied <- pr.ApplyProbed(pods, program, probe) }()
	if err := m.wait(ctx, len(pods), applied); err != nil {
		return 0, 0, err
	}
	time.Sleep(10 * time.Second)
	agent0, pods0 := pr.Usage()
	at := time.Now()
	time.Sleep(20 * time.Second)
	agent1, pods1 := pr.Usage()
	over := float64(time.Since(at))
	if err := errors.Join(p.Remove(ctx, pods), gone(ctx, p, 5*time.Millisecond)); err != nil {
		return 0, 0, err
	}
	return float64(agent1-agent0) / over * 100, float64(pods1-pods0) / over * 100, nil
}

// ApplyProbed implements [prober].
func (p *berth) ApplyProbed(pods []pod, program, probe string) error {
	return p.apply(pods, func(x pod) string { return manifest(x, x.running(program), "\n    readinessProbe: "+probe) })
}

// Usage implements [prober]. A pod's keeper and what is executed in it are in the pod's group.
func (p *berth) Usage() (agent, pods time.Duration) {
	return cpu([]int{p.cmd.Process.Pid}), groupUsage(p.group)
}

// groupUsage is the CPU time that a group and all below it have used.
func groupUsage(group string) time.Duration {
	if b, err := os.ReadFile("/sys/fs/cgroup/cpuacct" + group + "/cpuacct.usage"); err == nil {
		ns, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		return time.Duration(ns)
	}
	b, _ := os.ReadFile("/sys/fs/cgroup" + group + "/cpu.stat")
	us, _ := strconv.ParseInt(strings.TrimPrefix(strings.SplitN(string(b), "\n", 2)[0], "usage_usec "), 10, 64)
	return time.Duration(us) * time.Microsecond
}
