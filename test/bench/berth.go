package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// berth is the agent with a manifest directory: asked for means written there, deleted means removed there.
type berth struct {
	b    *bench
	dir  string
	cmd  *exec.Cmd
	args []string
	more []string // flags of the agent alone

	label, bin   string // of this build
	group        string // below which its pods are
	bridge, cidr string
}

func newBerth(b *bench) *berth {
	return &berth{b: b, label: "berth", bin: b.bin, group: "/berth-bench", bridge: "berthbench", cidr: "10.201.0.0/16"}
}

func (p *berth) Name() string { return p.label }

func (p *berth) Up(ctx context.Context) error {
	p.dir = p.b.dir + "/" + p.label
	for _, d := range []string{"manifests", "images"} {
		if err := os.MkdirAll(filepath.Join(p.dir, d), 0o755); err != nil {
			return err
		}
	}
	err := os.Link(p.b.bin+"/test/busybox.tar", p.dir+"/images/busybox.tar")
	if err != nil && !errors.Is(err, os.ErrExist) {
		// The temporary directory may be on another file system.
		if err := exec.Command("cp", p.b.bin+"/test/busybox.tar", p.dir+"/images/").Run(); err != nil {
			return err
		}
	}
	p.args = []string{
		"--root-dir=" + p.dir + "/root", "--run-dir=" + p.dir + "/run", "--log-dir=" + p.dir + "/logs",
		"--cgroup-root=" + p.group, "--bridge-name=" + p.bridge, "--pod-cidr=" + p.cidr,
	}
	args := append([]string{
		"agent", "--manifest-dir=" + p.dir + "/manifests", "--image-dir=" + p.dir + "/images",
		"--node-name=bench", "--cni-conf-dir=" + p.dir + "/cni",
	}, slices.Concat(p.args, p.more)...)
	logf, err := os.Create(p.dir + "/log")
	if err != nil {
		return err
	}
	defer logf.Close()
	p.cmd = exec.Command(p.bin+"/berth", args...)
	p.cmd.Stdout, p.cmd.Stderr = logf, logf
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	for range 300 {
		if err = exec.CommandContext(ctx, p.bin+"/berth", "--run-dir="+p.dir+"/run", "pods").Run(); err == nil {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return err
}

func (p *berth) Down() error {
	if p.cmd == nil || p.cmd.Process == nil {
		return nil
	}
	p.cmd.Process.Signal(syscall.SIGTERM)
	p.cmd.Wait()
	out, err := exec.Command(p.bin+"/berth", append([]string{"purge", "--yes"}, p.args...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("purge: %w: %s", err, out)
	}
	removeGroups(p.group) // the parent that clients of the socket named is theirs to remove
	return nil
}

func (p *berth) Apply(_ context.Context, pods []pod) error {
	return p.apply(pods, func(x pod) string { return manifest(x, x.command(), "") })
}

func (p *berth) apply(pods []pod, manifest func(pod) string) error {
	var errs []error
	for _, x := range pods {
		tmp := p.dir + "/" + x.name + ".new"
		errs = append(errs, os.WriteFile(tmp, []byte(manifest(x)), 0o644), os.Rename(tmp, p.dir+"/manifests/"+x.name+".yaml"))
	}
	return errors.Join(errs...)
}

// manifest is the pod as a user would write it, with what else is said of its container.
func manifest(x pod, command []string, more string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: %s
    command: ["%s"]
    volumeMounts: [{name: b, mountPath: /b}]%s
  volumes: [{name: b, hostPath: {path: %s}}]
`, x.name, image, strings.Join(command, `", "`), more, x.marker)
}

func (p *berth) Remove(_ context.Context, pods []pod) error {
	var errs []error
	for _, x := range pods {
		errs = append(errs, os.Remove(p.dir+"/manifests/"+x.name+".yaml"))
	}
	return errors.Join(errs...)
}

func (p *berth) Traces() int {
	return linksOf(p.bridge) + groupsBelow(p.group+"/kubepods/*/pod*", p.group+"/kubepods/pod*")
}

// Processes are the agent and the keepers: whatever runs out of berth's two binaries and was started by this run.
func (p *berth) Processes() []int {
	return named(func(pid int, exe string, cmdline []string) bool {
		return pid == p.cmd.Process.Pid ||
			slices.ContainsFunc(cmdline, func(a string) bool { return strings.Contains(a, p.dir+"/run") })
	})
}

// Parent is where the pods of clients of the socket have their groups.
func (p *berth) Parent() string { return p.group + "/cri" }

func (p *berth) Socket() string { return p.dir + "/run/cri.sock" }

func (p *berth) client() (*criClient, error) { return dialCRI(p.Socket()) }

func (p *berth) Pull(ctx context.Context, ref string) error {
	c, err := p.client()
	if err != nil {
		return err
	}
	defer c.conn.Close()
	return c.pull(ctx, ref)
}

func (p *berth) Forget(ctx context.Context, ref string) error {
	c, err := p.client()
	if err != nil {
		return err
	}
	defer c.conn.Close()
	return c.forget(ctx, ref)
}
