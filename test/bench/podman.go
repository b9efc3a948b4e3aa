package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"
)

// podman is `podman kube play`: no daemon, one command a pod. It is Debian's, with its defaults but for where things
// lie.
type podman struct {
	b   *bench
	dir string
}

// podmanBridge is what podman's default network is called.
const podmanBridge = "podman0"

func newPodman(b *bench) *podman { return &podman{b: b} }

func (*podman) Name() string { return "podman" }

func (p *podman) run(ctx context.Context, args ...string) error {
	base := []string{
		"--root", p.dir + "/root", "--runroot", p.dir + "/run", "--tmpdir", p.dir + "/tmp", "--network-config-dir", p.dir +
			"/net",
		"--storage-driver", "overlay", "--cgroup-manager", "cgroupfs", "--runtime", "runc",
	}
	cmd := exec.CommandContext(ctx, "podman", append(base, args...)...)
	cmd.Env = append(os.Environ(), "CONTAINERS_CONF="+p.dir+"/containers.conf")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("podman %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

func (p *podman) Up(ctx context.Context) error {
	p.dir = p.b.dir + "/podman"
	if err := os.MkdirAll(p.dir+"/net", 0o755); err != nil {
		return err
	}
	// Podman's own default raises limits, which a machine without CAP_SYS_RESOURCE refuses.
	limits := "[containers]\ndefault_ulimits = [\"nofile=4096:4096\", \"nproc=8192:8192\"]\n"
	if err := os.WriteFile(p.dir+"/containers.conf", []byte(limits), 0o644); err != nil {
		return err
	}
	return p.run(ctx, "load", "-i", p.b.bin+"/test/busybox.tar")
}

func (p *podman) Down() error {
	ctx := context.Background()
	errs := []error{p.run(ctx, "pod", "rm", "-f", "-a", "-t", "0")}
	if _, err := os.Stat("/sys/class/net/" + podmanBridge); err == nil {
		errs = append(errs, exec.Command("ip", "link", "del", podmanBridge).Run())
	}
	unmountBelow(p.dir)
	removeGroups("/libpod_parent")
	return errors.Join(errs...)
}

func (p *podman) Apply(ctx context.Context, pods []pod) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(2)
	for _, x := range pods {
		g.Go(func() error {
			file := filepath.Join(p.dir, x.name+".yaml")
			if err := os.WriteFile(file, []byte(manifest(x, x.command(), "")), 0o644); err != nil {
				return err
			}
			return p.run(ctx, "kube", "play", file)
		})
	}
	return g.Wait()
}

func (p *podman) Remove(ctx context.Context, pods []pod) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(2)
	for _, x := range pods {
		g.Go(func() error {
			err := p.run(ctx, "kube", "down", filepath.Join(p.dir, x.name+".yaml"))
			// It leaves two groups a pod for good; they are not waited for.
			removeGroups("/libpod_parent")
			return err
		})
	}
	return g.Wait()
}

func (p *podman) Traces() int { return linksOf(podmanBridge) }

func (p *podman) Processes() []int {
	return named(func(_ int, exe string, cmdline []string) bool {
		line := strings.Join(cmdline, " ")
		return strings.HasSuffix(exe, "/conmon") && strings.Contains(line, p.dir) || strings.HasSuffix(exe, "/catatonit") &&
			strings.Contains(line, "-P")
	})
}

func (p *podman) Pull(ctx context.Context, ref string) error {
	return p.run(ctx, "pull", "--tls-verify=false", "-q", ref)
}

func (p *podman) Forget(ctx context.Context, ref string) error { return p.run(ctx, "rmi", ref) }
