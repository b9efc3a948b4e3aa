package keeper_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/keeper"
)

func TestExecSetsUpItsProcess(t *testing.T) {
	p := newPod(t)
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
	p := newPod(t)
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
	p := newPod(t)
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
	if err == nil || !strings.Contains(err.Error(), keeper.ErrNotFound.Error()) {
		t.Errorf("exec in an unknown container: %v", err)
	}
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

// TestExecKillReachesAll starts what tries to get away: a background process,
// one in a session of its own, a daemon whose parents have gone, and one that
// ignores signals.
func TestExecKillReachesAll(t *testing.T) {
	for _, shared := range []bool{false, true} {
		t.Run(fmt.Sprintf("shared PID namespace %v", shared), func(t *testing.T) {
			p := newPod(t, func(c *keeper.Config) { c.PID = shared })
			spec := p.spec("c", "/bin/sleep", "1000")
			if shared {
				spec.Linux.Namespaces[1].Path = p.NSPath("pid")
			}
			c := p.container(spec)
			pid, err := p.Run(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			r, w, _ := os.Pipe()
			defer r.Close()
			pr := p.spec(c.ID, "/bin/sh", "-c", `trap '' TERM
				sleep 2001 & setsid sleep 2002 & (setsid sh -c 'sleep 2003 & sleep 2004 &' &) ; sleep 0.1; echo ready; sleep 2005`).Process
			proc, err := p.Exec(t.Context(), keeper.Exec{ContainerID: c.ID, Pid: pid, Process: pr, Stdout: w})
			w.Close()
			if err != nil {
				t.Fatal(err)
			}
			defer proc.Close()
			if _, err := io.ReadFull(r, make([]byte, 6)); err != nil {
				t.Fatal(err)
			}
			if err := proc.Kill(unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if e, err := proc.Wait(t.Context()); err != nil || e.Signal != 9 {
				t.Errorf("ended with %+v, %v", e, err)
			}
			if _, err := io.ReadAll(r); err != nil { // all that held the pipe are gone
				t.Fatal(err)
			}
			if left := processes("sleep\x00200"); len(left) != 0 {
				t.Errorf("left running: %v", left)
			}
		})
	}
}

// processes finds processes by a part of their command line.
func processes(part string) []string {
	var found []string
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), part) {
			found = append(found, f+": "+strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return found
}

func TestExecKillAfterTheEndReachesWhatIsLeft(t *testing.T) {
	p := newPod(t)
	id, pid := p.sh("sleep 1000")
	r, w, _ := os.Pipe()
	defer r.Close()
	proc, err := p.Exec(t.Context(), keeper.Exec{ContainerID: id, Pid: pid, Stdout: w, Process: p.spec(id, "/bin/sh", "-c", "setsid sleep 3001 & exit 0").Process})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Close()
	if e, err := proc.Wait(t.Context()); err != nil || e.Code != 0 {
		t.Fatalf("ended with %+v, %v", e, err)
	}
	if err := proc.Kill(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(r); err != nil {
		t.Fatal(err)
	}
}

// TestExecGoesOnWithoutTheAgent closes the connection as a crash would.
func TestExecGoesOnWithoutTheAgent(t *testing.T) {
	p := newPod(t)
	id, pid := p.sh("sleep 1000")
	r, w, _ := os.Pipe()
	defer r.Close()
	in, inw, _ := os.Pipe()
	defer inw.Close()
	nap := strconv.Itoa(1_000_000 + os.Getpid())
	pr := p.spec(id, "/bin/sh", "-c", "echo one; read x; echo $x; sleep "+nap+" & exit").Process
	proc, err := p.Exec(t.Context(), keeper.Exec{ContainerID: id, Pid: pid, Process: pr, Stdin: in, Stdout: w})
	in.Close()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(r, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	proc.Close()
	if _, err := proc.Wait(t.Context()); err == nil {
		t.Error("wait on a closed process has no error")
	}
	if _, err := io.WriteString(inw, "two\n"); err != nil {
		t.Fatal(err)
	}
	if b := make([]byte, 4); true {
		if _, err := io.ReadFull(r, b); err != nil || string(b) != "two\n" {
			t.Errorf("process said %q, %v", b, err)
		}
	}
	// What it left behind belongs to the container now, and the entry process
	// is gone.
	eventually(t, func() bool { return len(processes("berth-exec")) == 0 })
	eventually(t, func() bool { return len(processes("sleep\x00"+nap)) == 1 })
}

func eventually(t testing.TB, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it never came true")
		}
	}
}

func TestManyExecsLeaveNothing(t *testing.T) {
	p := newPod(t)
	id, pid := p.sh("sleep 1000")
	eventually(t, func() bool { return len(processes("berth-helper\x00start")) == 0 })
	before := files(t, p.Pid())
	for i := range 200 {
		switch i % 4 {
		case 0:
			_, _, _ = p.execIn(id, pid, nil, "nothing")
		case 1: // hang up before the end
			proc, err := p.Exec(t.Context(), keeper.Exec{ContainerID: id, Pid: pid, Process: p.spec(id, "/bin/true").Process})
			if err != nil {
				t.Fatal(err)
			}
			proc.Close()
		case 2:
			pr := p.spec(id, "/bin/true").Process
			pr.Terminal = true
			proc, err := p.Exec(t.Context(), keeper.Exec{ContainerID: id, Pid: pid, Process: pr})
			if err != nil {
				t.Fatal(err)
			}
			_, _ = proc.Wait(t.Context())
			proc.Close()
		default:
			if out, e, err := p.execIn(id, pid, nil, "echo", "x"); err != nil || e.Code != 0 || out != "x\n" {
				t.Fatal(out, e, err)
			}
		}
	}
	eventually(t, func() bool { return len(files(t, p.Pid())) <= len(before) })
	eventually(t, func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", p.Pid(), p.Pid()))
		return err == nil && len(strings.Fields(string(b))) == 1
	})
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

// TestExecThatIsGivenUpDoesNotRun ends the context at any moment.
func TestExecThatIsGivenUpDoesNotRun(t *testing.T) {
	p := newPod(t)
	id, pid := p.sh("sleep 1000")
	nap := strconv.Itoa(2_000_000 + os.Getpid())
	for i := range 40 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*100*time.Microsecond)
		proc, err := p.Exec(ctx, keeper.Exec{ContainerID: id, Pid: pid, Process: p.spec(id, "/bin/sleep", nap).Process})
		cancel()
		if err == nil {
			if err := proc.Kill(unix.SIGKILL); err != nil {
				t.Error(err)
			}
			if _, err := proc.Wait(t.Context()); err != nil {
				t.Error(err)
			}
			proc.Close()
		}
	}
	eventually(t, func() bool { return len(processes("sleep\x00"+nap)) == 0 && len(processes("berth-exec")) == 0 })
}

func TestExecEndsWithItsContainer(t *testing.T) {
	p := newPod(t)
	id, pid := p.sh("sleep 1000")
	proc, err := p.Exec(t.Context(), keeper.Exec{ContainerID: id, Pid: pid, Process: p.spec(id, "/bin/sleep", "1000").Process})
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Close()
	if err := p.Signal(context.Background(), id, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if e, err := proc.Wait(t.Context()); err != nil || e.Code != 137 {
		t.Errorf("ended with %+v, %v", e, err)
	}
	p.exit(id)
}
