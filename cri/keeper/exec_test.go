package keeper_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/keeper"
)

// both runs a test of what execs have in common by Exec and by Capture.
func both(t *testing.T, test func(*testing.T, *pod)) {
	for name, capture := range map[string]bool{"exec": false, "capture": true} {
		t.Run(name, func(t *testing.T) {
			p := newPod(t)
			p.capture = capture
			test(t, p)
		})
	}
}

func TestExecSetsUpItsProcess(t *testing.T) {
	both(t, execSetsUpItsProcess)
}

func execSetsUpItsProcess(t *testing.T, p *pod) {
	id, pid := p.sh("sleep 1000")
	umask := uint32(0o27)
	score := 500
	for name, tc := range map[string]struct {
		change func(*specs.Process)
		script string
		want   string
	}{
		"user": {
			func(p *specs.Process) {
				p.User = specs.User{UID: 1000, GID: 1001, AdditionalGids: []uint32{7, 8}, Umask: &umask}
			}, "id -u; id -g; id -G; umask; echo $HOME", "1000\n1001\n1001 7 8\n0027\n/tmp",
		},
		"root":         {nil, "id -u; id -G; umask; echo $HOME", "0\n0\n0022\n/root"},
		"unknown user": {func(p *specs.Process) { p.User.UID = 4711 }, "echo $HOME", "/"},
		"environment": {
			func(p *specs.Process) { p.Env = append(p.Env, "A=1", "HOME=/elsewhere", "A=2") },
			"echo $A $HOME", "2 /elsewhere",
		},
		"directory":  {func(p *specs.Process) { p.Cwd = "/tmp" }, "pwd", "/tmp"},
		"namespaces": {nil, "hostname; readlink /proc/self/ns/mnt | cut -c1-4; ps | grep -c [s]leep.1000", "pod\nmnt:\n1"},
		"session":    {nil, "cut -d' ' -f5,6 /proc/$$/stat; echo $$ $$", "SAME"},
		"oom score":  {func(p *specs.Process) { p.OOMScoreAdj = &score }, "cat /proc/self/oom_score_adj", "500"},
		"rlimit": {
			func(p *specs.Process) {
				p.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 77, Hard: 99}}
			}, "ulimit -Sn; ulimit -Hn", "77\n99",
		},
		"capabilities": {
			func(p *specs.Process) {
				p.Capabilities = &specs.LinuxCapabilities{Bounding: []string{"CAP_KILL", "CAP_CHOWN"}, Effective: []string{"CAP_KILL"}, Permitted: []string{"CAP_KILL"}}
			}, "grep CapBnd /proc/self/status", "CapBnd:\t0000000000000021",
		},
		"ambient": {
			func(p *specs.Process) {
				c := []string{"CAP_NET_BIND_SERVICE"}
				p.User.UID = 1000
				p.Capabilities = &specs.LinuxCapabilities{Bounding: c, Effective: c, Permitted: c, Inheritable: c, Ambient: c}
			}, "grep CapEff /proc/self/status", "CapEff:\t0000000000000400",
		},
		"no_new_privs": {func(p *specs.Process) { p.NoNewPrivileges = true }, "grep NoNewPrivs /proc/self/status", "NoNewPrivs:\t1"},
		"files":        {nil, "ls /proc/self/fd | wc -l", "4"}, // with the directory ls reads
	} {
		t.Run(name, func(t *testing.T) {
			out, e, err := p.execIn(id, pid, func(e *keeper.Exec) {
				if tc.change != nil {
					tc.change(e.Process)
				}
			}, "sh", "-c", tc.script)
			if err != nil || e.Code != 0 {
				t.Fatalf("ended with %+v, %v: %s", e, err, out)
			}
			out = strings.TrimSpace(out)
			if tc.want == "SAME" {
				if l := strings.Split(out, "\n"); len(l) != 2 || l[0] != l[1] {
					t.Errorf("session and group are %q", out)
				}
				return
			}
			if out != tc.want {
				t.Errorf("said %q, want %q", out, tc.want)
			}
		})
	}
}

func TestProcessesHaveNoSignalsBlockedOrIgnored(t *testing.T) {
	both(t, processesHaveNoSignalsBlockedOrIgnored)
}

func processesHaveNoSignalsBlockedOrIgnored(t *testing.T, p *pod) {
	id, pid := p.sh("sleep 1000")
	want := "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n"
	if out, _, err := p.execIn(id, pid, nil, "grep", "-E", "SigBlk|SigIgn", "/proc/self/status"); err != nil || out != want {
		t.Errorf("signals of an exec are %q, %v", out, err)
	}
	c := p.container(p.spec("c", "/bin/grep", "-E", "SigBlk|SigIgn", "/proc/self/status"))
	if _, err := p.Run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	p.exit(c.ID)
	if l := p.log(c.ID); len(l) != 2 || !strings.HasSuffix(l[0], "0000000000000000") || !strings.HasSuffix(l[1], "0000000000000000") {
		t.Errorf("signals of a container are %q", l)
	}
}

func TestExecTellsWhyItCannot(t *testing.T) {
	both(t, execTellsWhyItCannot)
}

func execTellsWhyItCannot(t *testing.T, p *pod) {
	id, pid := p.sh("sleep 1000")
	write(t, filepath.Join(p.rootfs, "bin/text"), "no program", 0o644)
	write(t, filepath.Join(p.rootfs, "bin/garbage"), "no program", 0o755)
	if err := os.Symlink("/proc/self/fd", filepath.Join(p.rootfs, "fds")); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		cwd, want string
		args      []string
	}{
		{"/", `exec: "nothing": executable file not found in $PATH`, []string{"nothing"}},
		{"/", `exec: "/bin/nothing": stat /bin/nothing: no such file or directory`, []string{"/bin/nothing"}},
		{"/", `exec: "/bin/text": permission denied`, []string{"/bin/text"}},
		{"/", `exec: "/bin": is a directory`, []string{"/bin"}},
		{"/", `exec /bin/garbage: exec format error`, []string{"/bin/garbage"}},
		{"/nowhere", `chdir to cwd ("/nowhere") set in config.json failed: no such file or directory`, []string{"true"}},
		{"/bin/text", `chdir to cwd`, []string{"true"}},
	} {
		_, _, err := p.execIn(id, pid, func(e *keeper.Exec) { e.Process.Cwd = tc.cwd }, tc.args...)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: error is %v, want %q", tc.args, err, tc.want)
		}
	}
	_, _, err := p.execIn("other", pid, nil, "true")
	if err == nil || !strings.Contains(err.Error(), keeper.ErrNotFound.Error()+": it is not known") {
		t.Errorf("exec in an unknown container: %v", err)
	}
	if err := p.Signal(t.Context(), id, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("its first process, %d, ended with wait status 9", pid)
	eventually(t, func() bool {
		_, _, err = p.execIn(id, pid, nil, "true")
		return err != nil && strings.Contains(err.Error(), keeper.ErrNotFound.Error()+": "+want)
	})
}

// TestExecCannotLeaveTheRoot tries the working directories that led out of
// containers through descriptors of the runtime (CVE-2024-21626).
func TestExecCannotLeaveTheRoot(t *testing.T) {
	p := newPod(t)
	id, pid := p.sh("sleep 1000")
	for fd := range 80 {
		for _, dir := range []string{"/proc/self/fd/%d", "/proc/thread-self/fd/%d", "/proc/self/fd/%d/../../../.."} {
			cwd := fmt.Sprintf(dir, fd)
			out, _, err := p.execIn(id, pid, func(e *keeper.Exec) { e.Process.Cwd = cwd }, "/bin/sh", "-c", "pwd; ls -a .")
			if err == nil && (strings.Contains(out, "unreachable") || strings.Contains(out, "keeper.sock") || strings.Contains(out, "sys\n") && strings.Contains(out, "boot\n")) {
				t.Fatalf("cwd %s leads out: %s", cwd, out)
			}
		}
	}
}

func TestExecWithTerminal(t *testing.T) {
	p := newPod(t)
	id, pid := p.sh("sleep 1000")
	pr := p.spec(id, "/bin/sh", "-c", "tty; stty size; read x; echo got $x; exit 4").Process
	pr.Terminal, pr.ConsoleSize = true, &specs.Box{Width: 81, Height: 25}
	pr.User.UID = 1000
	proc, err := p.Exec(t.Context(), keeper.Exec{ContainerID: id, Pid: pid, Process: pr})
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Close()
	if _, err := io.WriteString(proc.Console, "word\n"); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	_, _ = out.ReadFrom(proc.Console) // EIO when the other end is closed
	e, err := proc.Wait(t.Context())
	if err != nil || e.Code != 4 {
		t.Errorf("ended with %+v, %v", e, err)
	}
	for _, want := range []string{"/dev/pts/0\r\n", "25 81\r\n", "got word\r\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("terminal shows %q, want %q in it", out.String(), want)
		}
	}
}

func TestExecTerminalCanBeResized(t *testing.T) {
	p := newPod(t)
	id, pid := p.sh("sleep 1000")
	pr := p.spec(id, "/bin/sh", "-c", "trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.01; done").Process
	pr.Terminal = true
	proc, err := p.Exec(t.Context(), keeper.Exec{ContainerID: id, Pid: pid, Process: pr})
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Close()
	buf := make([]byte, 7)
	if _, err := io.ReadFull(proc.Console, buf); err != nil {
		t.Fatal(err)
	}
	if err := proc.Resize(100, 50); err != nil {
		t.Fatal(err)
	}
	out, _ := io.ReadAll(proc.Console)
	if !strings.Contains(string(out), "50 100") {
		t.Errorf("terminal shows %q", out)
	}
}

// noPasswd has a FIFO in the place of the file that tells the home directory, and returns a check that nobody has
// opened it.
func (p *pod) noPasswd(t *testing.T) (check func()) {
	t.Helper()
	path := filepath.Join(p.rootfs, "etc/passwd")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(path, 0o644); err != nil {
		t.Fatal(err)
	}
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(watch) })
	if _, err := unix.InotifyAddWatch(watch, path, unix.IN_OPEN); err != nil {
		t.Fatal(err)
	}
	return func() {
		if n, err := unix.Read(watch, make([]byte, 1024)); err != unix.EAGAIN {
			t.Errorf("it was opened: %d, %v", n, err)
		}
	}
}

func TestExecOpensNoPasswdThatIsNoFile(t *testing.T) {
	p := newPod(t)
	id, pid := p.sh("sleep 1000")
	unopened := p.noPasswd(t)
	if out, _, err := p.execIn(id, pid, nil, "/bin/sh", "-c", "echo $HOME"); err != nil || out != "/\n" {
		t.Errorf("home is %q, %v", out, err)
	}
	unopened()
}

func TestStartOpensNoPasswdThatIsNoFile(t *testing.T) {
	p := newPod(t)
	unopened := p.noPasswd(t)
	c := p.container(p.spec("c", "/bin/sh", "-c", "echo home is $HOME"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // else who opens it waits for ever
	defer cancel()
	if _, err := p.Run(ctx, c); err != nil {
		t.Fatal(err)
	}
	p.exit(c.ID)
	if lines := p.log(c.ID); len(lines) != 1 || !strings.HasSuffix(lines[0], "home is /") {
		t.Errorf("log: %q", lines)
	}
	unopened()
}

// processes finds processes by a part of their command line.
func processes(part string) []string {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	return running(files, part)
}

// children are those of the keeper: there are other keepers on the machine.
func (p *pod) children(part string) []string {
	var files []string
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", p.Pid()))
	for pid := range strings.FieldsSeq(string(b)) {
		files = append(files, "/proc/"+pid+"/cmdline")
	}
	return running(files, part)
}

func running(cmdlines []string, part string) []string {
	var found []string
	for _, f := range cmdlines {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), part) {
			found = append(found, f+": "+strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return found
}

func eventually(t testing.TB, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it never came true")
		}
	}
}

func files(t testing.TB, pid int) []string {
	t.Helper()
	l, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range l {
		l[i], _ = os.Readlink(f)
	}
	return l
}

func TestExecWithALargeEnvironment(t *testing.T) {
	p := newPod(t)
	id, pid := p.sh("sleep 1000")
	out, e, err := p.execIn(id, pid, func(e *keeper.Exec) {
		for i := range 2000 {
			e.Process.Env = append(e.Process.Env, fmt.Sprintf("V%d=%s", i, strings.Repeat("x", 500)))
		}
	}, "sh", "-c", "echo ${#V1999}")
	if err != nil || e.Code != 0 || out != "500\n" {
		t.Errorf("said %q, ended with %+v, %v", out, e, err)
	}
	// More than the kernel takes is an error, and the keeper is none the worse.
	_, _, err = p.execIn(id, pid, func(e *keeper.Exec) {
		for i := range 1000000 {
			e.Process.Env = append(e.Process.Env, fmt.Sprintf("V%d=", i))
		}
	}, "true")
	if err == nil {
		t.Error("a million variables were taken")
	}
	if _, e, err := p.execIn(id, pid, nil, "true"); err != nil || e.Code != 0 {
		t.Errorf("exec after that: %+v, %v", e, err)
	}
}
