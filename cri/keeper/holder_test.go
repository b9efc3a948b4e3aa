package keeper_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/keeper"
)

// TestHolderEnds: one that somebody has stopped, too, as root in a pod with the host's processes can.
func TestHolderEnds(t *testing.T) {
	needRoot(t)
	for _, stopped := range []bool{false, true} {
		h, err := keeper.NewHolder(openHelper(t))
		if err != nil {
			t.Fatal(err)
		}
		if stopped {
			stop(t, h.Pid())
		}
		closed := make(chan error, 1)
		go func() { closed <- h.Close() }()
		select {
		case err := <-closed:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Errorf("stopped: %t: it does not end", stopped)
			_ = unix.Kill(h.Pid(), unix.SIGKILL)
			<-closed
		}
	}
}

func stop(t *testing.T, pid int) {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), "State:\tT") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("it does not stop")
		}
	}
}

// TestHolderEndsWithAgent: also one that is killed.
func TestHolderEndsWithAgent(t *testing.T) {
	needRoot(t)
	const agent = "BERTH_TEST_HOLDS"
	if os.Getenv(agent) != "" {
		h, err := keeper.NewHolder(openHelper(t))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println(h.Pid())
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = h.Close() // a holder that nothing refers to any more is collected, and its pipe closed with it
		return
	}
	helper, err := helperBinary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestHolderEndsWithAgent$")
	cmd.Env = append(os.Environ(), agent+"=1", "BERTH_HELPER="+helper)
	out, err := cmd.StdoutPipe()
	_, ierr := cmd.StdinPipe()
	if err = errors.Join(err, ierr); err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	pid := 0
	_, err = fmt.Fscan(out, &pid)
	pidfd, open := unix.PidfdOpen(pid, 0)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err = errors.Join(err, open); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(time.Minute/time.Millisecond))
		if n == 1 {
			return
		}
		if !errors.Is(err, unix.EINTR) {
			t.Fatalf("it lives: %v", err)
		}
	}
}
