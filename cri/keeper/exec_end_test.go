package keeper_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/keeper"
)

// TestExecKillReachesAll starts what tries to get away: a background process,
// one in a session of its own, processes whose parents have gone, which are the
// container's children by then, and one that ignores signals. What has left both
// its parents and their sessions is the container's, as with other runtimes.
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
				sleep 47112001 & setsid sleep 47112002 & (sleep 47112003 & sleep 47112004 &)
				setsid sh -c '(sleep 47112006 &); echo ready; sleep 47112007' & sleep 47112005`).Process
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
			if left := processes("sleep\x004711200"); len(left) != 0 {
				t.Errorf("left running: %v", left)
			}
		})
	}
}

func TestExecKillAfterTheEndReachesWhatIsLeft(t *testing.T) {
	p := newPod(t)
	id, pid := p.sh("sleep 1000")
	r, w, _ := os.Pipe()
	defer r.Close()
	proc, err := p.Exec(t.Context(), keeper.Exec{ContainerID: id, Pid: pid, Stdout: w, Process: p.spec(id, "/bin/sh", "-c", "(sleep 3001 &); sleep 3002 & exit 0").Process})
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
	eventually(t, func() bool { return len(p.children("berth-exec")) == 0 })
	eventually(t, func() bool { return len(processes("sleep\x00"+nap)) == 1 })
}

func TestManyExecsLeaveNothing(t *testing.T) {
	p := newPod(t)
	id, pid := p.sh("sleep 1000")
	eventually(t, func() bool { return len(p.children("berth-helper\x00start")) == 0 })
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
	eventually(t, func() bool { return len(processes("sleep\x00"+nap)) == 0 && len(p.children("berth-exec")) == 0 })
}

// TestExecThatIsGivenUpAsItStartsDoesNotRun gives up just as the keeper has told of the start.
func TestExecThatIsGivenUpAsItStartsDoesNotRun(t *testing.T) {
	p := newPod(t)
	id, pid := p.sh("sleep 1000")
	nap := strconv.Itoa(4_000_000 + os.Getpid())
	if err := p.GiveUp(t.Context(), keeper.Exec{ContainerID: id, Pid: pid, Process: p.spec(id, "/bin/sleep", nap).Process}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return len(processes("sleep\x00"+nap)) == 0 && len(p.children("berth-exec")) == 0 })
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

// TestKeeperOutlivesForgottenExecs ends many programs at once whose agent has hung up: the keeper reaps entry processes
// of which it has not heard yet what they said last.
func TestKeeperOutlivesForgottenExecs(t *testing.T) {
	p := newPod(t)
	id, pid := p.sh("sleep 1000")
	for range 100 {
		proc, err := p.Exec(t.Context(), keeper.Exec{ContainerID: id, Pid: pid, Process: p.spec(id, "/bin/sleep", "1000").Process})
		if err != nil {
			t.Fatal(err)
		}
		proc.Close()
	}
	if err := p.Signal(t.Context(), id, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if e := p.exit(id); e.Signal != int(unix.SIGKILL) {
		t.Errorf("ended with %+v", e)
	}
	again, _ := p.sh("exit 3")
	if e := p.exit(again); e.Code != 3 {
		t.Errorf("the next container ended with %+v", e)
	}
}
