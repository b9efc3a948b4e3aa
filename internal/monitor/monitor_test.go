package monitor

import (
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestFirst(t *testing.T) {
	for _, c := range []struct {
		own, most int
		ids       []int
		want      int
	}{
		{100, 32768, []int{100, 107, 104, 120}, 104},
		{32760, 32768, []int{300, 32760, 305}, 300},
		{32760, 32768, []int{300, 32760, 32767}, 32767},
		{100, 32768, []int{100, 90, 32000}, 32000},
	} {
		if got, ok := first(c.own, c.most, c.ids); !ok || got != c.want {
			t.Errorf("of %d after %d: %d, %v, want %d", c.ids, c.own, got, ok, c.want)
		}
	}
	if id, ok := first(100, 32768, []int{100}); ok {
		t.Errorf("of none: %d", id)
	}
}

// TestRelax: the monitor has more slack, the first thread what it had.
func TestRelax(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs CAP_SYS_NICE")
	}
	before, err := number(slackOf(os.Getpid()))
	if err != nil {
		t.Skip(err)
	}
	if err := Relax(); err != nil {
		t.Fatal(err)
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	relaxed := 0
	for _, task := range tasks {
		b, err := os.ReadFile("/proc/" + task.Name() + "/timerslack_ns")
		if err == nil && strings.TrimSpace(string(b)) == strconv.Itoa(slack) {
			relaxed++
		}
	}
	if now, err := number(slackOf(os.Getpid())); relaxed == 0 || now != before || err != nil {
		t.Errorf("%d threads have slack, and the first %d, %v, after %d", relaxed, now, err, before)
	}
}

// TestFork: a program has the usual slack, whatever the thread has that starts it.
func TestFork(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs CAP_SYS_NICE")
	}
	usual, err := os.ReadFile(slackOf(os.Getpid()))
	if err != nil {
		t.Skip(err)
	}
	done := make(chan error)
	var out []byte
	var start func()
	start = func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			defer runtime.UnlockOSThread()
			started := make(chan struct{})
			go func() { defer close(started); start() }() // on another thread, as this one is taken
			<-started
			return
		}
		// Never unlocked: the thread ends with the goroutine.
		if err := unix.Prctl(unix.PR_SET_TIMERSLACK, slack, 0, 0, 0); err != nil {
			done <- err
			return
		}
		done <- Fork(func() (err error) {
			out, err = exec.Command("cat", "/proc/self/timerslack_ns").Output()
			return err
		})
	}
	go start()
	if err := <-done; err != nil || string(out) != string(usual) {
		t.Errorf("it has %q, %v, not %q", out, err, usual)
	}
}
