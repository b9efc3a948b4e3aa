package conformance

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var processCases = []testCase{
	{"ExitCodes", exitCodes},
	{"MissingCommand", missingCommand},
	{"OutOfMemory", outOfMemory},
	{"StopGrace", stopGrace},
	{"StopSignal", stopSignal},
	{"Logs", logs},
	{"ReopenLog", reopenLog},
	{"ExecSync", execSync},
	{"ExecSyncTimeout", execSyncTimeout},
	{"ExecSyncLeftBehind", execSyncLeftBehind},
	{"Process", process},
	{"Terminal", terminal},
}

// contextOf is the test's context with a limit for a test that has failed.
func contextOf(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), patience)
}

// waitFor waits a moment for an event of a container.
func waitFor(seen <-chan *runtimeapi.ContainerEventResponse, id string) bool {
	late := time.After(500 * time.Millisecond)
	for {
		select {
		case e := <-seen:
			if e.GetContainerId() == id {
				return true
			}
		case <-late:
			return false
		}
	}
}

func exitCodes(t *testing.T, s *suite) {
	p := s.pod(t, nil)
	for i, x := range []struct {
		script, reason string
		code           int32
	}{{"exit 0", "Completed", 0}, {"exit 3", "Error", 3}, {"kill -9 $$", "Error", 137}, {"kill -15 $$", "Error", 143}} {
		// A shell that is process 1 is not killed by its own signals, so another one is.
		id := p.run("c"+itoa(i), nil, "sh", "-c", "sh -c '"+x.script+"'; exit $?")
		if st := p.exited(id); st.GetExitCode() != x.code || st.GetReason() != x.reason || st.GetStartedAt() == 0 ||
			st.GetFinishedAt() < st.GetStartedAt() && !s.lacks(t, "Times") {
			t.Errorf("%s: got %v", x.script, st)
		}
	}
}

func missingCommand(t *testing.T, s *suite) {
	p := s.pod(t, nil)
	id, err := p.create(p.container("main", "no-such-thing"))
	must(t)(err)
	failed := p.start(id)
	if failed == nil {
		t.Fatal("it was started")
	}
	for _, words := range []string{"executable file", "no-such-thing", "not found in $PATH"} { // crun has another order
		if !strings.Contains(failed.Error(), words) {
			t.Errorf("got %v", failed)
		}
	}
	if st := p.status(id); st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || st.GetExitCode() != 128 ||
		st.GetReason() != "StartError" || !strings.Contains(st.GetMessage(), "no-such-thing") {
		t.Errorf("got %v", st)
	}
	_, err = s.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id})
	must(t)(err)
}

func outOfMemory(t *testing.T, s *suite) {
	p := s.pod(t, nil)
	// Not at once: containerd's shim listens for OOM kills from a moment after the start on.
	id := p.run("main", func(c *runtimeapi.ContainerConfig) { c.Linux.Resources.MemoryLimitInBytes = 16 << 20 },
		"sh", "-c", "sleep 1; exec dd if=/dev/zero of=/dev/null bs=64M count=1")
	if st := p.exited(id); st.GetReason() != "OOMKilled" || st.GetExitCode() != 137 {
		t.Errorf("got %v", st)
	}
}

func stopGrace(t *testing.T, s *suite) {
	p := s.pod(t, nil)
	// Each says when its trap is set: a signal that comes earlier would be lost.
	ready := func(id string) {
		p.eventually("the trap to be set", func() bool { return len(p.log(id)) > 0 })
	}
	polite := p.run("polite", nil, "sh", "-c", "trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.05; done")
	ready(polite)
	_, err := s.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: polite, Timeout: 30})
	must(t)(err)
	if st := p.status(polite); st.GetExitCode() != 7 || st.GetReason() != "Error" {
		t.Errorf("polite: got %v", st)
	}
	if got := text(p.log(polite)); got != "up\nbye\n" {
		t.Errorf("log: %q", got)
	}
	deaf := p.run("deaf", nil, "sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done")
	ready(deaf)
	_, err = s.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: deaf, Timeout: 1})
	must(t)(err)
	if st := p.status(deaf); st.GetExitCode() != 137 {
		t.Errorf("deaf: got %v", st)
	}
	// Who is called off has only its call ended; the stop is made again.
	deaf = p.run("deafer", nil, "sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done")
	ready(deaf)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := s.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: deaf, Timeout: 600}); err == nil {
		t.Error("a stop that was called off has succeeded")
	}
	if _, err = s.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: deaf}); err != nil {
		t.Error(err)
	}
	if st := p.status(deaf); st.GetExitCode() != 137 {
		t.Errorf("deafer: got %v", st)
	}
}

func stopSignal(t *testing.T, s *suite) {
	p := s.pod(t, nil)
	id := p.run("main", func(c *runtimeapi.ContainerConfig) { c.StopSignal = runtimeapi.Signal_SIGNAL_SIGUSR1 },
		"sh", "-c", "trap 'exit 9' USR1; echo up; while :; do sleep 0.05; done")
	p.eventually("the trap to be set", func() bool { return len(p.log(id)) > 0 })
	_, err := s.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 30})
	must(t)(err)
	if st := p.status(id); st.GetExitCode() != 9 || st.GetStopSignal() != runtimeapi.Signal_SIGNAL_SIGUSR1 {
		t.Errorf("got %v", st)
	}
}

func logs(t *testing.T, s *suite) {
	p := s.pod(t, nil)
	id := p.run("main", nil, "sh", "-c",
		"echo one; sleep 0.1; echo two >&2; sleep 0.1; yes x | tr -d '\\n' | head -c 40000; echo; printf end")
	p.exited(id)
	// Of two streams no order is promised: some runtimes read each of them by itself.
	of := func(stream string) []line {
		return slices.DeleteFunc(p.log(id), func(l line) bool { return l.stream != stream })
	}
	out, errs := of("stdout"), of("stderr")
	if got := text(out); strings.TrimSuffix(got, "\n") != "one\n"+strings.Repeat("x", 40000)+"\nend" {
		t.Fatalf("got %d bytes: %.40q", len(got), got)
	}
	if out[0] != (line{"stdout", true, "one"}) || len(errs) != 1 || errs[0] != (line{"stderr", true, "two"}) {
		t.Errorf("got %.100v, %v", out, errs)
	}
	if out[1].full || len(out[1].text) == 0 || len(out[1].text) > 16<<10 {
		t.Errorf("a long line begins with %d bytes, and is marked full: %v", len(out[1].text), out[1].full)
	}
	if st, err := os.Stat(p.status(id).GetLogPath()); err != nil || st.Mode().Perm()&0o007 != 0 {
		t.Errorf("everybody can use the log: %v, %v", st.Mode(), err)
	}
}

func reopenLog(t *testing.T, s *suite) {
	p := s.pod(t, nil)
	id := p.run("main", nil, "sh", "-c",
		"echo first; while ! test -e /tmp/go; do sleep 0.02; done; echo second; sleep 100000")
	p.eventually("the first line", func() bool { return len(p.log(id)) == 1 })
	path := p.status(id).GetLogPath()
	must(t)(os.Rename(path, path+".old"))
	_, err := s.ReopenContainerLog(t.Context(), &runtimeapi.ReopenContainerLogRequest{ContainerId: id})
	must(t)(err)
	p.sh(id, "touch /tmp/go")
	p.eventually("the second line", func() bool { return len(p.log(id)) > 0 })
	if got := text(p.log(id)); got != "second\n" {
		t.Errorf("got %q", got)
	}
	_, err = s.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id})
	must(t)(err)
	if _, err := s.ReopenContainerLog(t.Context(), &runtimeapi.ReopenContainerLogRequest{ContainerId: id}); err == nil {
		t.Error("the log of an exited container was reopened")
	}
}

func execSync(t *testing.T, s *suite) {
	p := s.pod(t, nil)
	id := p.sleeper("main", func(c *runtimeapi.ContainerConfig) {
		c.Envs = []*runtimeapi.KeyValue{{Key: "COLOR", Value: []byte("green")}}
		c.WorkingDir = "/tmp"
		security(c).RunAsUser = number(1000)
	})
	r, err := p.exec(id, 0, "sh", "-c", "echo out; echo err >&2; exit 5")
	if err != nil || r.GetExitCode() != 5 || string(r.GetStdout()) != "out\n" || string(r.GetStderr()) != "err\n" {
		t.Errorf("got %v, %v", r, err)
	}
	p.expect(id, map[string]string{"echo $COLOR": "green", "pwd": "/tmp", "id -u": "1000", "cat": ""})
	if _, err := p.exec(id, 60, "no-such-thing"); err == nil || !strings.Contains(err.Error(), "no-such-thing") {
		t.Errorf("a command that is not there: %v", err)
	}
	r, err = p.exec(id, 60, "sh", "-c", "yes | head -c 5000000")
	if err != nil || len(r.GetStdout()) != 5000000 || r.GetExitCode() != 0 {
		t.Errorf("long output: %d bytes, %v", len(r.GetStdout()), err)
	}
	created, err := p.create(p.container("created", "true"))
	must(t)(err)
	if _, err := p.exec(created, 5, "true"); err == nil {
		t.Error("an exec in a container that was not started")
	}
	_, err = s.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id})
	must(t)(err)
	if _, err := p.exec(id, 5, "true"); err == nil {
		t.Error("an exec in a container that has exited")
	}
}

func execSyncTimeout(t *testing.T, s *suite) {
	p := s.pod(t, nil)
	id := p.sleeper("main", nil)
	_, err := p.exec(id, 1, "sh", "-c", "sleep 4711 & exec sleep 4712")
	if s.lacks(t, "DeadlineExceeded") {
		if err == nil {
			t.Error("no error")
		}
	} else {
		wantCode(t, "an exec that takes too long", err, codes.DeadlineExceeded)
	}
	p.eventually("the command to be killed", func() bool { return !strings.Contains(p.sh(id, "ps"), "4712") })
	if !s.lacks(t, "Group") {
		p.eventually("what it has started to be killed", func() bool { return !strings.Contains(p.sh(id, "ps"), "4711") })
	}
}

func execSyncLeftBehind(t *testing.T, s *suite) {
	p := s.pod(t, nil)
	id := p.sleeper("main", nil)
	r, err := p.exec(id, 60, "sh", "-c", "echo before; sleep 1000 &")
	if err != nil || string(r.GetStdout()) != "before\n" || r.GetExitCode() != 0 {
		t.Errorf("got %v, %v", r, err)
	}
}

func process(t *testing.T, s *suite) {
	p := s.pod(t, nil)
	id := p.sleeper("env", func(c *runtimeapi.ContainerConfig) {
		c.Envs = []*runtimeapi.KeyValue{
			{Key: "A", Value: []byte("1")},
			{Key: "B", Value: []byte("two words = $A\nnext")},
			{Key: "EMPTY"},
		}
		c.WorkingDir = "/made/for/this"
	})
	// A start may be over when the program is about to be executed.
	p.eventually("the program", func() bool { return p.sh(id, "cat /proc/1/cmdline | tr '\\0' ' '") == "sleep 100000" })
	p.expect(id, map[string]string{
		"echo $A": "1", `echo "$B"`: "two words = $A\nnext", "echo ${EMPTY-unset}.": ".", "pwd": "/made/for/this", "echo " +
			"$HOSTNAME": p.cfg.Hostname,
		"echo $PATH":            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"readlink /proc/1/fd/0": "/dev/null", "cat /proc/1/oom_score_adj": "1000",
	})
	if got := p.output("args", func(c *runtimeapi.ContainerConfig) {
		c.Command, c.Args = []string{"echo"},
			[]string{"a", "b c"}
	}); got != "a b c" {
		t.Errorf("command and args: got %q", got)
	}
	// The image has the command sh and no entrypoint: args stand in the command's place.
	if got := p.output("argsonly", func(c *runtimeapi.ContainerConfig) {
		c.Command, c.Args = nil,
			[]string{"echo", "only"}
	}); got != "only" {
		t.Errorf("args alone: got %q", got)
	}
	if got := p.output("stdin", func(c *runtimeapi.ContainerConfig) { c.Stdin = false }, "cat"); got != "" {
		t.Errorf("without stdin: got %q", got)
	}
	two := p.run("two", nil, "sh", "-c", "sleep 100000 & sleep 100000 & wait")
	_, err := s.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: two})
	must(t)(err)
}

func terminal(t *testing.T, s *suite) {
	p := s.pod(t, nil)
	id := p.run("main", func(c *runtimeapi.ContainerConfig) { c.Tty, c.Stdin = true, true }, "sh", "-c",
		"tty; test -t 0 && test -t 1 && test -t 2 && echo $TERM; sleep 100000")
	p.eventually("the terminal", func() bool { return len(p.log(id)) >= 2 })
	got := strings.ReplaceAll(text(p.log(id)), "\r", "")
	if !strings.HasPrefix(got, "/dev/pts/0\n") && !strings.HasPrefix(got, "/dev/console\n") ||
		!strings.HasSuffix(got, "\nxterm\n") {
		t.Errorf("got %q", got)
	}
}
