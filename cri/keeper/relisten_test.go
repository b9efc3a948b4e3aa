package keeper_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/keeper"
)

// TestLostSocket: a keeper whose socket somebody has deleted is reached all the same, by this agent and by the next.
func TestLostSocket(t *testing.T) {
	p := newPod(t)
	c := p.container(p.spec("a", "sleep", "1000"))
	pid, err := p.Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(p.config.Dir, "keeper.sock")
	lose := map[string]func() error{
		"deleted":  func() error { return os.Remove(socket) },
		"replaced": func() error { return errors.Join(os.Remove(socket), os.WriteFile(socket, nil, 0o600)) },
		"not its own": func() error {
			if err := os.Remove(socket); err != nil {
				return err
			}
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			d, err := os.Open(p.config.Dir)
			if err != nil {
				return err
			}
			defer d.Close()
			return unix.Bind(fd, &unix.SockaddrUnix{Name: "/proc/self/fd/" + strconv.Itoa(int(d.Fd())) + "/keeper.sock"})
		},
	}
	for name, f := range lose {
		if err := f(); err != nil {
			t.Fatal(err)
		}
		if got, err := p.Run(t.Context(), c); err != nil || got != pid {
			t.Errorf("%s: got process %d, %v, want %d", name, got, err, pid)
		}
		if err := f(); err != nil {
			t.Fatal(err)
		}
		next, err := keeper.Open(t.Context(), "pod", p.config.Dir)
		if err != nil || next.Pid() != p.Pid() {
			t.Errorf("%s: the next agent finds %v", name, err)
		}
	}
	// Many who miss it at once all get through.
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	for range 20 {
		wait.Go(func() {
			if got, err := p.Run(t.Context(), c); err != nil || got != pid {
				t.Errorf("one of many: got process %d, %v, want %d", got, err, pid)
			}
		})
	}
	wait.Wait()
	// A keeper that is stopped does not listen, and is not taken for dead.
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(p.Pid(), unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if _, err := keeper.Open(t.Context(), "pod", p.config.Dir); err == nil || errors.Is(err, keeper.ErrGone) {
		t.Errorf("a stopped keeper: got %v", err)
	}
	if err := unix.Kill(p.Pid(), unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if _, err := keeper.Open(t.Context(), "pod", p.config.Dir); err != nil {
		t.Errorf("a keeper that goes on: %v", err)
	}
}

// TestDamagedRecord: a record that cannot be read keeps neither the others from being read nor the pod from going.
func TestDamagedRecord(t *testing.T) {
	p := newPod(t)
	pid, err := p.Run(t.Context(), p.container(p.spec("a", "sleep", "1000")))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"b": "", "c": "\x00\x00\x00", "d": "1 running", "e": "9 x y z\n"} {
		write(t, filepath.Join(p.config.Dir, "c", name), text, 0o600)
	}
	if err := os.Mkdir(filepath.Join(p.config.Dir, "c", "f"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"x": "", "y": "1 2", "z": "1 7 256 0 5 6\n"} {
		write(t, filepath.Join(p.config.Dir, "exit", name), text, 0o600)
	}
	exits, _ := keeper.ReadExits(p.config.Dir) // the damaged ones are told as well
	codes := map[string]int{}
	for _, e := range exits {
		codes[e.ContainerID] = e.Code
	}
	if want := map[string]int{"x": 255, "y": 255, "z": 1}; !maps.Equal(codes, want) {
		t.Errorf("exits: got %v, want %v", codes, want)
	}
	states, err := keeper.ReadStates(p.config.Dir)
	if err == nil || len(states) != 1 || states[0].Pid != pid {
		t.Errorf("got %+v, %v", states, err)
	}
	if err := keeper.Kill(p.config.Dir); err != nil {
		t.Errorf("kill: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := p.Stop(ctx); err != nil {
		t.Errorf("stop: %v", err)
	}
	// It may still have to be reaped.
	for range 1000 {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("the container's process is left")
}
