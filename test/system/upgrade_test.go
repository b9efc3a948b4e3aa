package system

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// upgraded is a node whose agent is started by a script from programs of its own.
type upgraded struct {
	*Node
	bin, script string
}

func newUpgraded(t *testing.T) *upgraded {
	n := newNode(t)
	u := &upgraded{Node: n, bin: filepath.Join(n.Dir, "bin"), script: filepath.Join(n.Dir, "restart.sh")}
	if err := os.Mkdir(u.bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"berth", "berth-helper"} {
		copyProgram(t, bin(name), filepath.Join(u.bin, name), "")
	}
	words := []string{"setsid", "-f", filepath.Join(u.bin, "berth")}
	for _, a := range n.agentArgs() {
		words = append(words, "'"+a+"'")
	}
	write(t, u.script, "#!/bin/sh\n"+strings.Join(words, " ")+" >>"+n.Log+" 2>&1 </dev/null\n")
	t.Cleanup(u.end)
	u.restart()
	return u
}

func (u *upgraded) restart() {
	u.t.Helper()
	if out, err := exec.Command("/bin/sh", u.script).CombinedOutput(); err != nil {
		u.t.Fatalf("start the agent: %v\n%s", err, out)
	}
	u.eventually("the agent to answer", func() error {
		resp, err := u.client.Get("http://node/healthz")
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != 200 {
			return errors.New(resp.Status)
		}
		return nil
	})
}

// agent is the process of the agent, by its program: 0 when there is none.
func (u *upgraded) agent() int {
	exes, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, exe := range exes {
		to, err := os.Readlink(exe)
		if err != nil || strings.TrimSuffix(to, " (deleted)") != filepath.Join(u.bin, "berth") && !strings.HasPrefix(to, u.bin+"/berth.") {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(exe)))
		return pid
	}
	return 0
}

// end ends the agents, which are nobody's children.
func (u *upgraded) end() {
	for pid := u.agent(); pid != 0; pid = u.agent() {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 60_000)
		unix.Close(fd)
	}
}

// copyProgram copies a program, with something after its end, which no kernel looks at.
func copyProgram(t *testing.T, from, to, more string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, append(b, more...), 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// releaseOf makes an archive of programs, as make package does, with its digest beside it.
func releaseOf(t *testing.T, programs map[string]string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "berth_test.tar.gz")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	h := sha256.New()
	zip, _ := gzip.NewWriterLevel(io.MultiWriter(f, h), gzip.BestSpeed)
	w := tar.NewWriter(zip)
	for name, from := range programs {
		b, err := os.ReadFile(from)
		if err == nil {
			err = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "berth_test/" + name, Mode: 0o755, Size: int64(len(b))})
		}
		if err == nil {
			_, err = w.Write(b)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), zip.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(filepath.Dir(path), "SHA256SUMS"), hex.EncodeToString(h.Sum(nil))+"  berth_test.tar.gz\n")
	return path
}

func (u *upgraded) upgrade(args ...string) (string, int) {
	u.t.Helper()
	out, errs, code := u.berth(append([]string{"upgrade", "--bin-dir", u.bin}, args...)...)
	u.t.Logf("berth upgrade %s: %d\n%s%s", strings.Join(args, " "), code, out, errs)
	if strings.Contains(out, "does not run any more") {
		u.t.Error("a container is said to have ended")
	}
	return out + errs, code
}

// TestUpgrade replaces the programs of a node that runs a pod: by others, back, by some that never become ready, and
// once it is killed in the middle. The pod's container has the same processes all the time.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	u := newUpgraded(t)
	u.apply("a.yaml", pod("a", "\n  "+fmt.Sprintf(sleeper, "{}")))
	before := u.waitReady("a")
	group := u.groupOf(before, before.Status.ContainerStatuses[0])
	processes := u.processesIn(group)
	first := u.agent()

	dir := t.TempDir()
	next := filepath.Join(dir, "berth")
	copyProgram(t, bin("berth"), next, "another build")
	version := strings.Fields(u.must("version"))[1]
	release := releaseOf(t, map[string]string{"berth": next, "berth-helper": bin("berth-helper")})
	broken := filepath.Join(dir, "broken")
	write(t, broken+".c", `#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv) { if (argc > 1 && !strcmp(argv[1], "version")) return puts("berth `+version+`") < 0; for (;;) pause(); }
`)
	if out, err := exec.Command("gcc", "-static", "-o", broken, broken+".c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	brokenRelease := releaseOf(t, map[string]string{"berth": broken, "berth-helper": bin("berth-helper")})

	// is says which program the agent is, and that nobody has touched the pod.
	is := func(what, program string) int {
		t.Helper()
		u.requireSame(before, u.waitReady("a"))
		if now := u.processesIn(group); !slices.Equal(now, processes) {
			t.Errorf("%s: the container has the processes %q, it had %q", what, now, processes)
		}
		pid := u.agent()
		has, err := os.ReadFile(fmt.Sprintf("/proc/%d/exe", pid))
		want, werr := os.ReadFile(program)
		if err != nil || werr != nil || sha256.Sum256(has) != sha256.Sum256(want) {
			t.Errorf("%s: the agent is not %s: %v, %v", what, program, err, werr)
		}
		return pid
	}

	if out, code := u.upgrade(release); code == 0 || !strings.Contains(out, "--restart-command") {
		t.Errorf("without a way to start it: %d, %s", code, out)
	}
	if out, code := u.upgrade("--restart-command", u.script, "--sha256", strings.Repeat("0", 64), release); code == 0 || !strings.Contains(out, "digest") {
		t.Errorf("a wrong digest: %d, %s", code, out)
	}
	if pid := is("refused", bin("berth")); pid != first {
		t.Errorf("what is refused has ended the agent: %d, it was %d", pid, first)
	}
	how := "/bin/sh " + u.script
	// Its terminal goes away meanwhile.
	if _, code := u.upgrade("--restart-command", "kill -HUP $PPID; exec "+how, release); code != 0 {
		t.Fatalf("upgrade: exit code %d", code)
	}
	is("upgraded", next)
	if _, code := u.upgrade("--rollback"); code != 0 {
		t.Fatalf("rollback: exit code %d", code)
	}
	is("rolled back", bin("berth"))
	if out, code := u.upgrade("--restart-command", how, "--ready-timeout", "100ms", brokenRelease); code == 0 || !strings.Contains(out, "rolled back") {
		t.Errorf("one that never becomes ready: %d, %s", code, out)
	}
	is("never ready", bin("berth"))

	// The command that is to start the agent kills who has called it.
	if _, code := u.upgrade("--restart-command", "kill -9 $PPID", release); code == 0 {
		t.Error("an upgrade that was killed succeeds")
	}
	if now := u.processesIn(group); !slices.Equal(now, processes) {
		t.Errorf("killed: the container has the processes %q, it had %q", now, processes)
	}
	if _, code := u.upgrade("--resume", "--restart-command", how); code != 0 {
		t.Fatalf("resume: exit code %d", code)
	}
	is("resumed", next)

	u.apply("b.yaml", pod("b", "\n  "+fmt.Sprintf(sleeper, "{}")))
	u.waitReady("b")
	u.remove("b.yaml")
	u.waitGone("b")
}
