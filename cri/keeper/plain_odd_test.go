package keeper_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// file is one of an image.
func file(path, text string, mode os.FileMode) func(*testing.T, string, string) {
	return func(t *testing.T, root, _ string) {
		t.Helper()
		at := filepath.Join(root, path)
		if err := os.RemoveAll(at); err != nil {
			t.Fatal(err)
		}
		write(t, at, text, mode)
	}
}

// bob is at home where nobody is to look.
const bob = "bob:x:1000:1000::/leak:/bin/sh\n"

// passwdAt has the image's list of users elsewhere.
func passwdAt(to string) func(*testing.T, string, string) {
	return func(t *testing.T, root, host string) {
		t.Helper()
		link("etc/passwd", to)(t, root, host)
		file("etc/group", bob, 0o644)(t, root, host)
	}
}

// kernelLog has the machine's log say where a user is at home.
func kernelLog(t *testing.T, root, host string) {
	t.Helper()
	link("etc/passwd", "/proc/kmsg")(t, root, host)
	f, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer f.Close()
	if _, err := f.WriteString(bob); err != nil {
		t.Skip(err)
	}
}

func program(args ...string) func(*specs.Spec, string) {
	return func(s *specs.Spec, _ string) { s.Process.Args = args }
}

func user(uid, gid uint32) func(*specs.Spec, string) {
	return func(s *specs.Spec, _ string) { s.Process.User.UID, s.Process.User.GID = uid, gid }
}

func environment(env ...string) func(*specs.Spec, string) {
	return func(s *specs.Spec, _ string) { s.Process.Env = env }
}

func limit(name string, soft, hard uint64) func(*specs.Spec, string) {
	return func(s *specs.Spec, _ string) {
		s.Process.Rlimits = append(s.Process.Rlimits, specs.POSIXRlimit{Type: name, Soft: soft, Hard: hard})
	}
}

func profile(name string) func(*specs.Spec, string) {
	return func(s *specs.Spec, _ string) { s.Process.ApparmorProfile = name }
}

func capability(name string) func(*specs.Spec, string) {
	return func(s *specs.Spec, _ string) { s.Process.Capabilities.Bounding = []string{name} }
}

// pretended has calls return 0 without a word to the kernel.
func pretended(calls ...string) func(*specs.Spec, string) {
	return func(s *specs.Spec, _ string) {
		s.Process.User.UID, s.Process.User.GID = 1000, 1000
		s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{
			{Names: calls, Action: specs.ActErrno, ErrnoRet: new(uint(0))},
		}}
	}
}

// odd are containers that mostly cannot be started. Why not, is the same both ways.
var odd = []attack{
	{name: "program is missing", spec: program("/nowhere")},
	{name: "program is not in the PATH", spec: program("nowhere")},
	{name: "program may not be executed", image: file("bin/x", "#!/bin/sh\n", 0o644), spec: program("/bin/x")},
	{name: "program without its interpreter", image: file("bin/x", "#!/nowhere\n", 0o755), spec: program("/bin/x")},
	{name: "program is its own interpreter", image: file("bin/x", "#!/bin/x\n", 0o755), spec: program("/bin/x")},
	{name: "program is a text", image: file("bin/x", "whatever", 0o755), spec: program("/bin/x")},
	{name: "program is below a file", spec: program("/etc/passwd/x")},
	{name: "program is relative", spec: program("bin/reveal")},
	{name: "program is a dot", spec: program("..")},
	{name: "program has a long name", spec: program("/" + strings.Repeat("a", 300))},
	{name: "arguments are too long", spec: program("/bin/reveal", strings.Repeat("a", 140<<10))},
	{name: "argument with NUL", spec: program("/bin/reveal", "a\x00b")},
	{name: "PATH is missing", spec: environment("A=b")},
	{name: "PATH is empty", spec: environment("PATH=")},
	{name: "PATH begins with the working directory", spec: func(s *specs.Spec, _ string) {
		s.Process.Env, s.Process.Cwd = []string{"PATH=:/bin"}, "/bin"
	}},
	{name: "PATH has the working directory", spec: environment("PATH=/sbin:.:/bin")},
	{name: "user is no user", spec: user(1<<32-1, 0)},
	{name: "group is no group", spec: user(0, 1<<32-1)},
	{name: "user is a large number", spec: user(1<<31, 1<<31)},
	{name: "working directory is another's", spec: func(s *specs.Spec, _ string) {
		s.Process.Cwd, s.Process.User.UID = "/locked", 1000
	}},
	{name: "limits are the wrong way round", spec: limit("RLIMIT_CORE", 2, 1)},
	{name: "limit has no name", spec: limit("RLIMIT_X", 1, 1)},
	{name: "nothing can be written", spec: limit("RLIMIT_FSIZE", 0, 0)},
	{name: "no stack", spec: limit("RLIMIT_STACK", 0, 0)},
	{name: "no memory", spec: limit("RLIMIT_AS", 1, 1)},
	{name: "AppArmor that is not there", spec: profile("berth-test-nothing")},
	{name: "AppArmor says unconfined", spec: profile("unconfined")},
	{name: "capability is unknown", spec: capability("CAP_X")},
	{name: "capability is in small letters", spec: capability("cap_chown")},
	{name: "user is only pretended", spec: pretended("setresuid")},
	{name: "group is only pretended", spec: pretended("setresgid")},
	{name: "user is pretended in all ways", spec: pretended("setresuid", "setuid", "setreuid")},
	{name: "groups are only pretended", spec: pretended("setgroups")},
	{name: "capabilities are only pretended", spec: pretended("capset")},
	{name: "passwd is the machine's log", image: kernelLog, spec: user(1000, 0)},
	{name: "passwd is behind a magic link", image: passwdAt("/proc/self/root/etc/group"), spec: user(1000, 0)},
	{name: "passwd is behind a link", image: passwdAt("../../../etc/group"), spec: user(1000, 0)},
	{name: "passwd is of the kernel", image: passwdAt("/proc/self/mountinfo"), spec: user(1000, 0)},
}

// TestOddIsLibcontainers has odd containers started both ways, without and with a terminal: a start in C that has come
// as far as to its terminal is still libcontainer's to begin again.
func TestOddIsLibcontainers(t *testing.T) {
	p := newPod(t)
	p.install("reveal")
	host := filepath.Join(p.dir, "host")
	for i, a := range odd {
		for _, terminal := range []bool{false, true} {
			b := a
			b.spec = func(s *specs.Spec, host string) {
				s.Process.Args[0], s.Process.Terminal = "reveal", terminal
				a.spec(s, host)
			}
			t.Run(a.name, func(t *testing.T) {
				want := p.attacked(t, i, b, host, true)
				got := p.attacked(t, i, b, host, false)
				missing, more := differ(want, got)
				if len(missing)+len(more) > 0 {
					t.Errorf("with a terminal: %t, by libcontainer only:\n%s\nin C only:\n%s", terminal,
						strings.Join(missing, "\n"), strings.Join(more, "\n"))
				}
			})
		}
	}
}
