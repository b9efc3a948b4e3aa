package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// floor is the C program that does what the kernel needs for a pod, and nothing else.
type floor struct {
	b   *bench
	dir string
}

const floorBridge = "floorbench"

func (*floor) Name() string { return "floor" }

func (*floor) Daemon() int { return 0 }

func (f *floor) Up(context.Context) error {
	f.dir = f.b.dir + "/floor"
	if err := os.MkdirAll(f.dir+"/lower", 0o755); err != nil {
		return err
	}
	return command("ip", "link", "add", floorBridge, "up", "type", "bridge")
}

func (*floor) Down() error {
	if _, err := os.Stat("/sys/class/net/" + floorBridge); err != nil {
		return nil
	}
	return command("ip", "link", "del", floorBridge)
}

func (f *floor) Pod(_ context.Context, x pod, running func() error) error {
	dir := f.dir + "/" + x.name
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	group := costRoot + "/floor/pod"
	cmd := exec.Command(f.b.bin+"/test/floor", append([]string{
		floorBridge, "10.204.0.2/10.204.0.1", group, dir, f.dir + "/lower", x.marker,
	}, x.command()...)...)
	if err := parentGroups(filepath.Dir(group)); err != nil {
		return err
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	var said strings.Builder
	cmd.Stderr = &said
	if err := f.b.inGroup(costRoot+"/floor/daemon", cmd.Start); err != nil {
		return err
	}
	err = errors.Join(running(), in.Close(), cmd.Wait())
	if err != nil {
		return fmt.Errorf("%w: %s", err, said.String())
	}
	return nil
}

// parentGroups makes a group in each hierarchy, as an installation has made it before.
func parentGroups(group string) error {
	roots, _ := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	if len(roots) == 0 {
		roots = []string{"/sys/fs/cgroup/cgroup.procs"}
	}
	for _, r := range roots {
		dir := filepath.Dir(r)
		for part := range strings.SplitSeq(strings.TrimPrefix(group, "/"), "/") {
			dir = filepath.Join(dir, part)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
				return err
			}
			for _, set := range []string{"/cpuset.cpus", "/cpuset.mems"} {
				if b, err := os.ReadFile(filepath.Dir(dir) + set); err == nil {
					_ = os.WriteFile(dir+set, b, 0)
				}
			}
		}
	}
	return nil
}

// ociRuntime is a runtime's command alone, asked for a container with namespaces of its own, none of which leads
// anywhere: no pod, no network and no overlay are around it.
type ociRuntime struct {
	b            *bench
	program, dir string
}

func (r *ociRuntime) Name() string { return r.program }

func (*ociRuntime) Daemon() int { return 0 }

func (r *ociRuntime) Up(ctx context.Context) error {
	r.dir = r.b.dir + "/" + r.program
	if err := os.MkdirAll(r.dir+"/rootfs", 0o755); err != nil {
		return err
	}
	if _, err := exec.LookPath(r.program); err != nil {
		return err
	}
	// Else the runtime's container would be nobody's child, and its end nobody's to see.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	if err := r.spec(); err != nil {
		return err
	}
	// One that cannot make a container here is no peer.
	m, err := r.b.markers()
	if err != nil {
		return err
	}
	defer m.close()
	x := pod{name: "try", marker: m.dir, program: "/b/cost"}
	if err := os.Link(r.b.dir+"/cost", m.dir+"/cost"); err != nil {
		return err
	}
	return r.Pod(ctx, x, func() error { return m.waitFor(ctx, x.name) })
}

// spec has the runtime write its own default configuration.
func (r *ociRuntime) spec() error {
	cmd := exec.Command(r.program, "spec")
	cmd.Dir = r.dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func (*ociRuntime) Down() error { return nil }

// configure changes in the default what a container of its own needs.
func (r *ociRuntime) configure(x pod) error {
	b, err := os.ReadFile(r.dir + "/config.json")
	if err != nil {
		return err
	}
	var spec map[string]any
	if err := json.Unmarshal(b, &spec); err != nil {
		return err
	}
	process, _ := spec["process"].(map[string]any)
	linux, _ := spec["linux"].(map[string]any)
	mounts, _ := spec["mounts"].([]any)
	if process == nil || linux == nil {
		return errors.New("configuration without process")
	}
	process["args"], process["terminal"] = x.command(), false
	linux["cgroupsPath"] = costRoot + "/" + r.program + "/pods/" + x.name
	spec["root"] = map[string]any{"path": r.dir + "/rootfs"}
	spec["mounts"] = append(mounts, map[string]any{
		"destination": "/b", "type": "bind", "source": x.marker, "options": []string{"rbind", "rw"},
	})
	delete(process, "rlimits") // a machine without CAP_SYS_RESOURCE refuses to raise them
	if b, err = json.Marshal(spec); err != nil {
		return err
	}
	bundle := r.dir + "/" + x.name
	return errors.Join(os.MkdirAll(bundle, 0o755), os.WriteFile(bundle+"/config.json", b, 0o644))
}

func (r *ociRuntime) Pod(_ context.Context, x pod, running func() error) error {
	if err := r.configure(x); err != nil {
		return err
	}
	if err := r.call("run", "--detach", "--bundle", r.dir+"/"+x.name, x.name); err != nil {
		return err
	}
	err := running()
	return errors.Join(err, r.call("delete", "--force", x.name), r.reap())
}

func (r *ociRuntime) call(args ...string) error {
	cmd := exec.Command(r.program, append([]string{"--root", r.dir + "/state"}, args...)...)
	// Not a pipe: the container has it as long as it lives.
	said, err := os.CreateTemp(r.dir, "said-")
	if err != nil {
		return err
	}
	defer said.Close()
	defer os.Remove(said.Name())
	cmd.Stdout, cmd.Stderr = said, said
	if err := r.b.inGroup(costRoot+"/"+r.program+"/daemon", cmd.Start); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		_, _ = said.Seek(0, io.SeekStart)
		text, _ := io.ReadAll(io.LimitReader(said, 2000))
		return fmt.Errorf("%s %s: %w: %s", r.program, args[0], err, text)
	}
	return nil
}

// reap takes the container's process, which the runtime has left to this one.
func (*ociRuntime) reap() error {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if pid <= 0 && !errors.Is(err, unix.EINTR) {
			return nil
		}
	}
}

func command(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}
