package keeper_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/keeper"
)

func TestMain(m *testing.M) {
	keeper.HelperForTest = helperBinary
	goleak.VerifyTestMain(closing{m}, goleak.Cleanup(func(code int) {
		if helperDir != "" {
			os.RemoveAll(helperDir)
		}
		os.Exit(code)
	}))
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: namespaces, cgroups and mounts of the real kernel")
	}
}

var helperDir string

// helperBinary is built once; $BERTH_HELPER is one that was built already, as
// `make sanitize` does.
var helperBinary = sync.OnceValues(func() (string, error) {
	if p := os.Getenv("BERTH_HELPER"); p != "" {
		return p, nil
	}
	dir, err := os.MkdirTemp("", "berth-helper-")
	if err != nil {
		return "", err
	}
	helperDir = dir
	out := filepath.Join(dir, "berth-helper")
	// As the Makefile builds it, so that what it is made of is compiled once.
	cmd := exec.Command("go", "build", "-trimpath", "-tags", "seccomp,osusergo,netgo", "-ldflags", "-s -w", "-o", out, "../helper")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	if b, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build helper: %w: %s", err, b)
	}
	return out, nil
})

func openHelper(t testing.TB) *os.File {
	t.Helper()
	path, err := helperBinary()
	if err != nil {
		t.Fatal(err)
	}
	f, err := keeper.OpenHelper(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// pod is a keeper under test, with directories of its own.
type pod struct {
	capture bool // of execIn: by Capture
	old     bool // by libcontainer, also what is ordinary
	*keeper.Keeper
	t      testing.TB
	dir    string // everything is below it
	config keeper.Config
	rootfs string
	n      int
	holder int // who holds the last scope
}

func newPod(t testing.TB, change ...func(*keeper.Config)) *pod {
	t.Helper()
	needRoot(t)
	p := &pod{t: t, dir: t.TempDir()}
	p.config = keeper.Config{ID: "pod", Dir: filepath.Join(p.dir, "keeper"), Helper: openHelper(t), IPC: true, UTS: true, Hostname: "pod"}
	for _, fn := range change {
		fn(&p.config)
	}
	if err := os.MkdirAll(p.config.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	p.makeRootfs()
	k, err := keeper.Start(t.Context(), p.config)
	if err != nil {
		t.Fatal(err)
	}
	p.Keeper = k
	t.Cleanup(p.cleanup)
	return p
}

func (p *pod) cleanup() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := p.Stop(ctx); err != nil {
		p.t.Errorf("stop: %v", err)
	}
	if err := keeper.Kill(p.config.Dir); err != nil {
		p.t.Errorf("kill: %v", err)
	}
	// A helper that was built with sanitizers tells here what they found.
	reports, err := filepath.Glob(filepath.Join(p.config.Dir, "sanitizer.*"))
	if err != nil {
		p.t.Error(err)
	}
	for _, r := range reports {
		text, err := os.ReadFile(r)
		p.t.Errorf("%s, %v: %s", r, err, text)
	}
	removeCgroups(p.t)
}

// makeRootfs is a root directory with a static busybox.
func (p *pod) makeRootfs() {
	p.rootfs = filepath.Join(p.dir, "rootfs")
	for _, d := range []string{"bin", "etc", "proc", "dev", "sys", "tmp", "root"} {
		if err := os.MkdirAll(filepath.Join(p.rootfs, d), 0o755); err != nil {
			p.t.Fatal(err)
		}
	}
	b, err := os.ReadFile(cmp.Or(os.Getenv("BUSYBOX"), "/bin/busybox"))
	if err != nil {
		p.t.Skip("needs a static busybox: ", err)
	}
	write(p.t, filepath.Join(p.rootfs, "bin/busybox"), string(b), 0o755)
	for a := range strings.FieldsSeq("sh cat echo sleep id ls yes head true false dd hostname kill ps mkdir ln stty env pwd setsid wc tty grep umask mount touch sort date cut readlink ulimit seq usleep tr tail rm") {
		if err := os.Symlink("busybox", filepath.Join(p.rootfs, "bin", a)); err != nil {
			p.t.Fatal(err)
		}
	}
	write(p.t, filepath.Join(p.rootfs, "etc/passwd"), "root:x:0:0:root:/root:/bin/sh\nbob:x:1000:1000::/tmp:/bin/sh\n", 0o644)
}

func write(t testing.TB, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// spec is what a container's config.json has unless a test changes it.
func (p *pod) spec(id string, args ...string) *specs.Spec {
	caps := []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_NET_BIND_SERVICE"}
	s := &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: p.rootfs},
		Process: &specs.Process{
			Args: args, Cwd: "/",
			Env:          []string{"PATH=/bin:/sbin"},
			Capabilities: &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755", "size=65536k"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: groupsPath(id),
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.MountNamespace},
				{Type: specs.PIDNamespace},
				{Type: specs.IPCNamespace, Path: p.NSPath("ipc")},
				{Type: specs.UTSNamespace, Path: p.NSPath("uts")},
			},
		},
	}
	return s
}

func mountTmpfs(t testing.TB, dir, options string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("test", dir, "tmpfs", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
}

func cgroupRoot() string { return fmt.Sprintf("/berth-test-%d", os.Getpid()) }

// removeCgroups removes the test's cgroups in every hierarchy, and says what
// would not go.
func removeCgroups(t testing.TB) {
	if scoped() {
		removeScopes(t)
	}
	mounts, _ := filepath.Glob("/sys/fs/cgroup/*" + cgroupRoot())
	mounts = append(mounts, "/sys/fs/cgroup"+cgroupRoot())
	for _, m := range mounts {
		deadline := time.Now().Add(time.Minute)
		for {
			left := 0
			_ = filepath.WalkDir(m, func(path string, d os.DirEntry, err error) error {
				if err == nil && d.IsDir() && path != m {
					if unix.Rmdir(path) != nil {
						left++
					}
				}
				return nil
			})
			err := unix.Rmdir(m)
			if err == nil || err == unix.ENOENT {
				break
			}
			if time.Now().After(deadline) {
				t.Errorf("cgroup %s is left: %v", m, err)
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// container is a bundle that is ready to be run.
func (p *pod) container(spec *specs.Spec) keeper.Container {
	p.t.Helper()
	p.n++
	id := fmt.Sprintf("c%d", p.n)
	bundle := filepath.Join(p.dir, id)
	if err := os.MkdirAll(bundle, 0o700); err != nil {
		p.t.Fatal(err)
	}
	if scoped() || !strings.Contains(spec.Linux.CgroupsPath, ":") {
		spec.Linux.CgroupsPath = groupsPath(id)
	}
	b, err := json.Marshal(spec)
	if err != nil {
		p.t.Fatal(err)
	}
	write(p.t, filepath.Join(bundle, "config.json"), string(b), 0o600)
	c := keeper.Container{ID: id, Bundle: bundle, StateDir: filepath.Join(p.dir, "state"), LogPath: filepath.Join(bundle, "log"), TTY: spec.Process.Terminal}
	if i := slices.IndexFunc(spec.Linux.Namespaces, isPID); i >= 0 {
		c.PIDNamespace = spec.Linux.Namespaces[i].Path
	}
	if caps := spec.Process.Capabilities; caps != nil && slices.Contains(caps.Bounding, "CAP_SYS_PTRACE") {
		c.Traces, c.Freezer = true, freezer(id)
	}
	if !p.old {
		p.ordinary(&c, spec)
	}
	return c
}

// freezer is the directory of a container's cgroup by which it is frozen.
func freezer(id string) string {
	dir := "/sys/fs/cgroup/freezer"
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.procs"); err == nil {
		dir = "/sys/fs/cgroup"
	}
	return filepath.Join(dir, groupOf(id))
}

// sh runs a shell script as a container and returns its id and pid.
func (p *pod) sh(script string) (string, int) {
	p.t.Helper()
	c := p.container(p.spec("c", "/bin/sh", "-c", script))
	pid, err := p.Run(p.t.Context(), c)
	if err != nil {
		p.t.Fatal(err)
	}
	return c.ID, pid
}

// exit waits for the exit record of a container.
func (p *pod) exit(id string) keeper.Exit {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
	defer cancel()
	var got keeper.Exit
	err := p.Watch(ctx, func(e keeper.Exit) {
		if e.ContainerID == id {
			got = e
			cancel()
		}
	})
	if got.ContainerID == "" {
		p.t.Fatalf("no exit of %s: %v", id, err)
	}
	return got
}

// log returns the parts of a container's log: stream, kind and content. The kernel writes page by page, and who reads
// meanwhile has the beginning of a line for a moment.
func (p *pod) log(id string) []string {
	p.t.Helper()
	var b []byte
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		var err error
		if b, err = os.ReadFile(filepath.Join(p.dir, id, "log")); err != nil {
			p.t.Fatal(err)
		}
		if len(b) == 0 || b[len(b)-1] == '\n' || time.Now().After(deadline) {
			break
		}
	}
	var lines []string
	for _, l := range strings.SplitAfter(string(b), "\n") {
		if l == "" {
			continue
		}
		stamp, rest, ok := strings.Cut(l, " ")
		if _, err := time.Parse(time.RFC3339Nano, stamp); err != nil || !ok || l[len(l)-1] != '\n' {
			p.t.Fatalf("log line %q is not in the CRI format: %v", l, err)
		}
		lines = append(lines, strings.TrimSuffix(rest, "\n"))
	}
	return lines
}

// execIn runs a program in a container and returns its output and its end.
func (p *pod) execIn(id string, pid int, change func(*keeper.Exec), args ...string) (string, keeper.Exit, error) {
	p.t.Helper()
	if p.capture {
		e := keeper.Exec{ContainerID: id, Pid: pid, Process: p.spec(id, args...).Process}
		if change != nil {
			change(&e)
		}
		var out bytes.Buffer
		exit, err := p.Capture(p.t.Context(), e, &out, &out)
		return out.String(), exit, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		p.t.Fatal(err)
	}
	defer r.Close()
	e := keeper.Exec{ContainerID: id, Pid: pid, Process: p.spec(id, args...).Process, Stdout: w, Stderr: w}
	if change != nil {
		change(&e)
	}
	proc, err := p.Exec(p.t.Context(), e)
	w.Close()
	if err != nil {
		return "", keeper.Exit{}, err
	}
	defer proc.Close()
	var out bytes.Buffer
	if _, err := out.ReadFrom(r); err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
	defer cancel()
	exit, err := proc.Wait(ctx)
	return out.String(), exit, err
}
