package keeper_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/keeper"
)

func (p *pod) script(id string, pid int, text string) keeper.Exec {
	return keeper.Exec{ContainerID: id, Pid: pid, Process: p.spec(id, "/bin/sh", "-c", text).Process}
}

func TestCapture(t *testing.T) {
	p := newPod(t)
	id, pid := p.sh("sleep 1000")
	for script, want := range map[string]struct {
		out, err string
		code     int
	}{
		"true":                               {"", "", 0},
		"exit 7":                             {"", "", 7},
		"kill -9 $$":                         {"", "", 137},
		"echo a; echo b >&2; echo c; read x": {"a\nc\n", "b\n", 1}, // there is no input
		"head -c 1000000 /dev/zero | tr '\\0' x; head -c 16384 /dev/zero | tr '\\0' y >&2": {strings.Repeat("x", 1000000), strings.Repeat("y", 16384), 0},
		"exec >&-; sleep 0.1; echo late >&2":                                               {"", "late\n", 0},
		"exec >&- 2>&-; sleep 0.1; exit 3":                                                 {"", "", 3},
		// What is left behind may say a last word.
		"(sleep 0.2; echo after) & exit 0": {"after\n", "", 0},
	} {
		var out, err bytes.Buffer
		e, failed := p.Capture(t.Context(), p.script(id, pid, script), &out, &err)
		if failed != nil || e.Code != want.code || out.String() != want.out || err.String() != want.err {
			t.Errorf("%s: %+v, %v, said %.40q (%d) and %.40q (%d)", script, e, failed, out.String(), out.Len(), err.String(), err.Len())
		}
	}
}

// What is left behind keeps the output open for as long as it likes, but not the caller.
func TestCaptureLeavesWhatWasLeftBehind(t *testing.T) {
	p := newPod(t)
	id, pid := p.sh("sleep 1000")
	nap := strconv.Itoa(3_000_000 + os.Getpid())
	var out bytes.Buffer
	if e, err := p.Capture(t.Context(), p.script(id, pid, "echo x; sleep "+nap+" & exit 4"), &out, &out); err != nil || e.Code != 4 || out.String() != "x\n" {
		t.Errorf("%+v, %v, said %q", e, err, out.String())
	}
	eventually(t, func() bool { return len(p.children("berth-exec")) == 0 })
	eventually(t, func() bool { return len(processes("sleep\x00"+nap)) == 1 })
}

func TestCaptureKillReachesAll(t *testing.T) {
	p := newPod(t)
	id, pid := p.sh("sleep 1000")
	why := errors.New("timed out")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var out bytes.Buffer
	var ready sync.Once
	tell := writer(func(b []byte) (int, error) {
		// A moment later, when those in the background are under way.
		ready.Do(func() { time.AfterFunc(500*time.Millisecond, func() { cancel(why) }) })
		return out.Write(b)
	})
	_, err := p.Capture(ctx, p.script(id, pid, `trap '' TERM
		sleep 47113001 & setsid sleep 47113002 & (sleep 47113003 & sleep 47113004 &) ; echo ready; head -c 20000 /dev/zero | tr '\0' x; sleep 47113005`), tell, tell)
	if !errors.Is(err, why) || !strings.HasPrefix(out.String(), "ready\n") {
		t.Errorf("error is %v, it said %q", err, out.String())
	}
	eventually(t, func() bool { return len(processes("sleep\x004711300")) == 0 && len(p.children("berth-exec")) == 0 })
}

func TestCaptureThatIsGivenUpDoesNotRun(t *testing.T) {
	p := newPod(t)
	id, pid := p.sh("sleep 1000")
	nap := strconv.Itoa(4_000_000 + os.Getpid())
	for i := range 40 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*100*time.Microsecond)
		var out bytes.Buffer
		if _, err := p.Capture(ctx, p.script(id, pid, "exec sleep "+nap), &out, &out); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error is %v", err)
		}
		cancel()
	}
	eventually(t, func() bool { return len(processes("sleep\x00"+nap)) == 0 && len(p.children("berth-exec")) == 0 })
}

func TestCaptureEndsWithItsContainer(t *testing.T) {
	p := newPod(t)
	id, pid := p.sh("sleep 1000")
	type end struct {
		keeper.Exit
		err error
	}
	ended := make(chan end)
	ready := make(chan struct{})
	go func() {
		e, err := p.Capture(t.Context(), p.script(id, pid, "head -c 20000 /dev/zero; sleep 1000"), told{ready}, told{})
		ended <- end{e, err}
	}()
	<-ready
	if err := p.Signal(t.Context(), id, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if e := <-ended; e.err != nil && !errors.Is(e.err, keeper.ErrGone) || e.err == nil && e.Code != 137 {
		t.Errorf("ended with %+v", e)
	}
	p.exit(id)
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

// told closes its channel when it is written to.
type told struct{ ready chan struct{} }

func (o told) Write(b []byte) (int, error) {
	if o.ready != nil && len(b) > 0 {
		select {
		case <-o.ready:
		default:
			close(o.ready)
		}
	}
	return len(b), nil
}

// A writer that fails ends the command: nobody wants its output.
func TestCaptureWithoutAReader(t *testing.T) {
	p := newPod(t)
	id, pid := p.sh("sleep 1000")
	if _, err := p.Capture(t.Context(), p.script(id, pid, "yes 47114001"), full{}, full{}); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("error is %v", err)
	}
	eventually(t, func() bool { return len(processes("47114001")) == 0 && len(p.children("berth-exec")) == 0 })
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, unix.ENOSPC }

// What a command is asked over may be left by one that was killed, or by an entry process that was, and be wanted by
// many at once.
func TestCapturesOneAfterTheOther(t *testing.T) {
	p := newPod(t)
	id, pid := p.sh("sleep 1000")
	say := func(what string) {
		var out bytes.Buffer
		if e, err := p.Capture(t.Context(), p.script(id, pid, "echo "+what), &out, &out); err != nil || e.Code != 0 || out.String() != what+"\n" {
			t.Errorf("%s: %+v, %v, said %q", what, e, err, out.String())
		}
	}
	for i := range 5 {
		say("before " + strconv.Itoa(i))
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if _, err := p.Capture(ctx, p.script(id, pid, "sleep 1000"), io.Discard, io.Discard); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error is %v", err)
		}
		cancel()
		say("after a timeout " + strconv.Itoa(i))
		if e, err := p.Capture(t.Context(), p.script(id, pid, "kill -9 $PPID; sleep 1000"), io.Discard, io.Discard); err == nil && e.Code != 137 {
			t.Errorf("an entry process that is killed ends with %+v", e)
		}
		say("after a kill " + strconv.Itoa(i))
		if _, err := p.Capture(t.Context(), keeper.Exec{ContainerID: id, Pid: pid, Process: p.spec(id, "nothing").Process}, io.Discard, io.Discard); err == nil {
			t.Error("a command that there is not has run")
		}
	}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 10 {
				say(fmt.Sprintf("at once %d %d", i, j))
			}
		})
	}
	all.Wait()
	eventually(t, func() bool { return len(p.children("berth-exec")) == 0 })
}

func TestManyCapturesLeaveNothing(t *testing.T) {
	p := newPod(t)
	id, pid := p.sh("sleep 1000")
	eventually(t, func() bool { return len(p.children("berth-helper\x00start")) == 0 })
	var before []string
	for i := range 100 {
		if i == 1 {
			before = files(t, p.Pid()) // with the connection that is kept
		}
		var out bytes.Buffer
		if e, err := p.Capture(t.Context(), p.script(id, pid, "echo x"), &out, &out); err != nil || e.Code != 0 || out.String() != "x\n" {
			t.Fatal(out.String(), e, err)
		}
	}
	eventually(t, func() bool { return len(files(t, p.Pid())) <= len(before) })
	eventually(t, func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", p.Pid(), p.Pid()))
		return err == nil && len(strings.Fields(string(b))) == 1
	})
}
