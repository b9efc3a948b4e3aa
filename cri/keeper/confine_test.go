package keeper_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/moby/profiles/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/keeper"
)

// confined runs a sleeping container under a profile and returns its id, pid
// and the filter its start left for exec.
func (p *pod) confined(profile *specs.LinuxSeccomp, change func(*specs.Process), args ...string) (keeper.Container, int, []byte) {
	p.t.Helper()
	spec := p.spec("c", args...)
	spec.Linux.Seccomp = profile
	if change != nil {
		change(spec.Process)
	}
	c := p.container(spec)
	pid, err := p.Run(p.t.Context(), c)
	if err != nil {
		p.t.Fatal(err)
	}
	bpf, err := os.ReadFile(filepath.Join(c.Bundle, "seccomp.bpf"))
	if err != nil {
		p.t.Fatal(err)
	}
	return c, pid, bpf
}

func defaultProfile(t *testing.T, p *pod) *specs.LinuxSeccomp {
	t.Helper()
	s := p.spec("c")
	profile, err := seccomp.GetDefaultProfile(s)
	if err != nil {
		t.Fatal(err)
	}
	return profile
}

// TestSeccompIsTheSameForContainerAndExec asks for what the default profile
// refuses (EPERM), for what it never heard of (ENOSYS), and for what it allows.
func TestSeccompIsTheSameForContainerAndExec(t *testing.T) {
	p := newPod(t)
	const script = "grep Seccomp: /proc/self/status; unshare -m true 2>&1 | tail -c 25; mkdir /tmp/$$ && rm -r /tmp/$$ && echo made"
	want := []string{"Seccomp:\t2", "Operation not permitted", "made"}
	if err := os.Symlink("busybox", filepath.Join(p.rootfs, "bin/unshare")); err != nil {
		t.Fatal(err)
	}
	all := allCapabilities()
	for _, nnp := range []bool{false, true} {
		for _, uid := range []uint32{0, 1000} {
			change := func(pr *specs.Process) {
				pr.NoNewPrivileges, pr.User.UID = nnp, uid
				if uid == 0 {
					pr.Capabilities = &specs.LinuxCapabilities{Bounding: all, Effective: all, Permitted: all}
				}
			}
			if err := os.Chmod(filepath.Join(p.rootfs, "tmp"), 0o777); err != nil {
				t.Fatal(err)
			}
			c, _, _ := p.confined(defaultProfile(t, p), change, "/bin/sh", "-c", script)
			p.exit(c.ID)
			var got []string
			for _, l := range p.log(c.ID) {
				got = append(got, strings.TrimSpace(strings.TrimPrefix(l[len("stdout F"):], " ")))
			}
			check := func(who string, got []string) {
				if len(got) != 3 || got[0] != want[0] || !strings.HasSuffix(got[1], want[1]) || got[2] != want[2] {
					t.Errorf("no_new_privs %v, user %d: %s says %q", nnp, uid, who, got)
				}
			}
			check("container", got)
			c, pid, bpf := p.confined(defaultProfile(t, p), change, "/bin/sleep", "1000")
			out, e, err := p.execIn(c.ID, pid, func(e *keeper.Exec) { e.SeccompBPF = bpf; change(e.Process) }, "sh", "-c", script)
			if err != nil {
				t.Fatal(e, err)
			}
			check("exec", strings.Split(strings.TrimSpace(out), "\n"))
		}
	}
	cached, err := filepath.Glob(filepath.Join(p.dir, "state", ".seccomp", "*"))
	if err != nil || len(cached) != 1 {
		t.Errorf("cached filters are %v, %v", cached, err)
	}
}

func allCapabilities() []string {
	return strings.Fields("CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER CAP_SETUID CAP_SETGID CAP_KILL CAP_SYS_CHROOT")
}

func TestSeccompProfilesThatAllowByDefault(t *testing.T) {
	p := newPod(t)
	errno := uint(unix.EXDEV)
	profile := &specs.LinuxSeccomp{
		DefaultAction: specs.ActAllow,
		Architectures: []specs.Arch{specs.ArchX86_64, specs.ArchX86, specs.ArchX32, specs.ArchAARCH64},
		Syscalls: []specs.LinuxSyscall{
			{Names: []string{"mkdir", "mkdirat", "not_a_syscall"}, Action: specs.ActErrno, ErrnoRet: &errno},
			{Names: []string{"kill"}, Action: specs.ActErrno, Args: []specs.LinuxSeccompArg{{Index: 1, Value: 10, Op: specs.OpEqualTo}}},
		},
	}
	c, _, _ := p.confined(profile, nil, "/bin/sh", "-c", "mkdir /tmp/x; kill -USR1 $$; kill -0 $$ && echo alive")
	p.exit(c.ID)
	text := strings.Join(p.log(c.ID), "\n")
	for _, want := range []string{"Invalid cross-device link", "Operation not permitted", "alive"} {
		if !strings.Contains(text, want) {
			t.Errorf("log is %q, want %q in it", text, want)
		}
	}
}

func TestSeccompKillEndsTheContainer(t *testing.T) {
	p := newPod(t)
	profile := &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{{Names: []string{"mkdir", "mkdirat"}, Action: specs.ActKillProcess}}}
	c, _, _ := p.confined(profile, nil, "/bin/mkdir", "/tmp/x")
	if e := p.exit(c.ID); e.Signal != int(unix.SIGSYS) {
		t.Errorf("ended with %+v", e)
	}
}

func TestSeccompProfileThatIsWrongIsAnError(t *testing.T) {
	p := newPod(t)
	for want, profile := range map[string]*specs.LinuxSeccomp{
		"architecture": {DefaultAction: specs.ActAllow, Architectures: []specs.Arch{"Z80"}},
		"action":       {DefaultAction: "SCMP_ACT_NOTHING"},
		"operator":     {DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{{Names: []string{"kill"}, Action: specs.ActErrno, Args: []specs.LinuxSeccompArg{{Op: "x"}}}}},
		"flag":         {DefaultAction: specs.ActAllow, Flags: []specs.LinuxSeccompFlag{"x"}},
	} {
		spec := p.spec("c", "/bin/true")
		spec.Linux.Seccomp = profile
		if _, err := p.Run(t.Context(), p.container(spec)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error is %v", want, err)
		}
	}
}

func TestUserNamespace(t *testing.T) {
	p := newPod(t)
	if err := os.Chmod(p.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for d := p.dir; d != "/"; d = filepath.Dir(d) {
		if st, err := os.Stat(d); err == nil && st.Mode().Perm()&0o001 == 0 {
			if err := os.Chmod(d, st.Mode().Perm()|0o011); err != nil {
				t.Fatal(err)
			}
		}
	}
	const base = 200000
	err := filepath.Walk(p.rootfs, func(path string, _ os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, base, base)
	})
	if err != nil {
		t.Fatal(err)
	}
	spec := p.spec("c", "/bin/sleep", "1000")
	// The pod's namespaces belong to the host's user namespace, so the
	// container has its own.
	spec.Linux.Namespaces = []specs.LinuxNamespace{
		{Type: specs.UserNamespace}, {Type: specs.MountNamespace}, {Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
	}
	spec.Linux.UIDMappings = []specs.LinuxIDMapping{{ContainerID: 0, HostID: base, Size: 65536}}
	spec.Linux.GIDMappings = spec.Linux.UIDMappings
	spec.Linux.Seccomp = defaultProfile(t, p)
	c := p.container(spec)
	c.StateDir = "/run/" + filepath.Base(p.dir) + fmt.Sprint(os.Getpid())
	t.Cleanup(func() { os.RemoveAll(c.StateDir) })
	pid, err := p.Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d", pid), &st); err != nil || st.Uid != base {
		t.Errorf("container runs as %d, %v", st.Uid, err)
	}
	bpf, err := os.ReadFile(filepath.Join(c.Bundle, "seccomp.bpf"))
	if err != nil {
		t.Fatal(err)
	}
	for uid, want := range map[uint32]string{0: "0 0\n", 1000: "1000 1000\n"} {
		out, e, err := p.execIn(c.ID, pid, func(e *keeper.Exec) {
			e.SeccompBPF = bpf
			e.Process.User = specs.User{UID: uid, GID: uid, AdditionalGids: []uint32{uid}}
		}, "sh", "-c", "echo $(id -u) $(id -G)")
		if err != nil || out != want {
			t.Errorf("exec as %d says %q and ended with %+v, %v", uid, out, e, err)
		}
	}
	pr := p.spec(c.ID, "/bin/true").Process
	pr.Terminal = true
	proc, err := p.Exec(t.Context(), keeper.Exec{ContainerID: c.ID, Pid: pid, Process: pr})
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Close()
	if e, err := proc.Wait(t.Context()); err != nil || e.Code != 0 {
		t.Errorf("ended with %+v, %v", e, err)
	}
}

// cgroup makes a cgroup in some hierarchies, of v2 and v1 where both are there,
// and returns its cgroup.procs files.
func cgroup(t *testing.T, name string) []string {
	t.Helper()
	var procs []string
	for _, r := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/freezer", "/sys/fs/cgroup"} {
		if _, err := os.Stat(r + "/cgroup.procs"); err != nil {
			continue
		}
		dir := filepath.Join(r, cgroupRoot(), name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		procs = append(procs, dir+"/cgroup.procs")
	}
	return procs
}

// noted adds a file to groups that keeps the number of the first launcher that joins them, and returns whether that one
// is there, or was: it may have gone before anybody looks.
func noted(t *testing.T, groups []string) (procs []string, joined func() bool) {
	t.Helper()
	note := filepath.Join(t.TempDir(), "note")
	write(t, note, "", 0o600)
	return append(slices.Clone(groups), note), func() bool {
		b, err := os.ReadFile(note)
		pid, perr := strconv.Atoi(string(b))
		return err == nil && perr == nil && (in(groups, pid) || unix.Kill(pid, 0) != nil)
	}
}

// in says whether a process is in groups.
func in(files []string, pid int) bool {
	return !slices.ContainsFunc(files, func(f string) bool {
		b, _ := os.ReadFile(f)
		return !slices.Contains(strings.Fields(string(b)), strconv.Itoa(pid))
	})
}

func TestKeeperAndLaunchersJoinTheirCgroups(t *testing.T) {
	own, launch := cgroup(t, "keeper"), cgroup(t, "launch")
	procs, joined := noted(t, launch)
	p := newPod(t, func(c *keeper.Config) { c.CgroupProcs, c.LaunchProcs = own, procs })
	if !in(own, p.Pid()) {
		t.Errorf("keeper is not in %q", own)
	}
	// The launcher that waits is there too, until it is too long for it.
	eventually(t, joined)
	id, pid := p.sh("sleep 1000")
	if in(launch, pid) || in(own, pid) {
		t.Error("container is in a cgroup of the keeper's")
	}
	if err := p.Signal(t.Context(), id, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.exit(id)
	second, _ := p.sh("exit 3") // by a launcher of its own
	if e := p.exit(second); e.Code != 3 {
		t.Errorf("ended with %+v", e)
	}
	eventually(t, func() bool { b, _ := os.ReadFile(launch[0]); return len(b) == 0 })
}

func TestSystemdMakesTheCgroup(t *testing.T) {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		t.Skip("needs systemd")
	}
	p := newPod(t)
	spec := p.spec("c", "/bin/cat", "/proc/self/cgroup")
	unit := fmt.Sprintf("berth-test-%d", os.Getpid())
	spec.Linux.CgroupsPath = "system.slice:" + unit + ":c1"
	c := p.container(spec)
	if _, err := p.Run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if e := p.exit(c.ID); e.Code != 0 {
		t.Errorf("ended with %+v", e)
	}
	if l := p.log(c.ID); !slices.ContainsFunc(l, func(l string) bool { return strings.HasSuffix(l, "/system.slice/"+unit+"-c1.scope") }) {
		t.Errorf("container is in %q", l)
	}
}

func TestLauncherThatIsNotNeededGoesAway(t *testing.T) {
	launch := cgroup(t, "launch")
	procs, joined := noted(t, launch)
	newPod(t, func(c *keeper.Config) { c.LaunchProcs = procs })
	eventually(t, joined)
	eventually(t, func() bool { b, _ := os.ReadFile(launch[0]); return len(b) == 0 })
}

func TestExecJoinsItsCgroup(t *testing.T) {
	p := newPod(t)
	id, pid := p.sh("sleep 1000")
	procs := cgroup(t, "exec")
	for _, p.capture = range []bool{false, true} {
		for _, set := range [][]string{procs[:1], procs} {
			// From the second time on the keeper has them open, and the third time they are not those any more.
			for i := range 3 {
				if i == 2 {
					for _, f := range procs {
						eventually(t, func() bool { return unix.Rmdir(filepath.Dir(f)) == nil })
						if err := os.Mkdir(filepath.Dir(f), 0o755); err != nil {
							t.Fatal(err)
						}
					}
				}
				out, e, err := p.execIn(id, pid, func(e *keeper.Exec) { e.CgroupProcs = set }, "cat", "/proc/self/cgroup")
				if err != nil || e.Code != 0 || strings.Count(out, cgroupRoot()+"/exec") != len(set) {
					t.Errorf("with %v: said %q, ended with %+v, %v", set, out, e, err)
				}
			}
		}
	}
	_, _, err := p.execIn(id, pid, func(e *keeper.Exec) { e.CgroupProcs = []string{"/nowhere/cgroup.procs"} }, "true")
	if err == nil || !strings.Contains(err.Error(), "join /nowhere/cgroup.procs") {
		t.Errorf("error is %v", err)
	}
	eventually(t, func() bool {
		return !slices.ContainsFunc(procs, func(f string) bool { b, _ := os.ReadFile(f); return len(b) > 0 })
	})
}
