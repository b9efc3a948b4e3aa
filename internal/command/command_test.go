package command

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// program is a program of the node.
func program(t *testing.T, name, script string) {
	t.Helper()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// A program may leave behind what keeps its output open, as what mounts a file system of a server may. It has ended all
// the same.
func TestRunThatLeavesSomebody(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	program(t, "leaves", "sleep 1000 &\necho $! >"+file+"\n")
	err := Run(t.Context(), "leaves")
	data, readErr := os.ReadFile(file)
	must(t, readErr)
	pid, convErr := strconv.Atoi(strings.TrimSpace(string(data)))
	must(t, convErr)
	must(t, unix.Kill(pid, unix.SIGKILL)) // it is still there: nobody has waited for its end
	must(t, err)
}

// What a program says is told when it fails, but not without end.
func TestRunThatFails(t *testing.T) {
	program(t, "fails", "echo why >&2\nhead -c 1000000 /dev/zero | tr '\\0' x\nexit 3\n")
	err := Run(t.Context(), "fails")
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "why") || len(err.Error()) > 2*mostSaid {
		t.Errorf("%.200v", err)
	}
	if err := Run(t.Context(), "absent-program"); err == nil || !strings.Contains(err.Error(), "is not on the node") {
		t.Errorf("%v", err)
	}
}

// A program goes on no longer than its caller wants it to, whatever it has started.
func TestRunGivesUp(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	must(t, unix.Mkfifo(fifo, 0o600))
	program(t, "hangs", "echo on >"+fifo+"\nexec sleep 1000\n")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = os.ReadFile(fifo) // it has begun
		cancel()
	}()
	if err := Run(ctx, "hangs"); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// What is missing is told with where it is to be had.
func TestMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for name, pkg := range map[string]string{
		"mkfs.xfs": "xfsprogs", "xfs_growfs": "xfsprogs", "mkfs.btrfs": "btrfs-progs", "btrfs": "btrfs-progs", "resize2fs": "e2fsprogs",
		"fsck.ext4": "e2fsprogs", "cryptsetup": "cryptsetup-bin", "lvcreate": "lvm2", "blkid": "util-linux",
	} {
		if err := Run(t.Context(), name); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), pkg) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A secret comes by a pipe, and a deadline ends what does not read it.
func TestStdinAndDeadline(t *testing.T) {
	program(t, "reads", "cat\n")
	out, err := Call{Name: "reads", Stdin: []byte("secret")}.Run(t.Context())
	if err != nil || out.Out != "secret" {
		t.Errorf("%q, %v", out.Out, err)
	}
	program(t, "hangs", "exec sleep 1000\n")
	if _, err := (Call{Name: "hangs", Stdin: make([]byte, 1<<20), Deadline: 1}).Run(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

// TestEndsWithParent has a program end with the process that has started it, killed, and not with the thread.
func TestEndsWithParent(t *testing.T) {
	if pipe := os.Getenv("BERTH_TEST_PARENT"); pipe != "" {
		// A thread that ends meanwhile is nobody's end.
		go func() { runtime.LockOSThread() }()
		_ = Run(t.Context(), "sh", "-c", "echo begun > "+pipe+"; exec sleep 600 < "+pipe)
		return
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	must(t, unix.Mkfifo(pipe, 0o600))
	parent := exec.Command(os.Args[0], "-test.run=^TestEndsWithParent$")
	parent.Env = append(os.Environ(), "BERTH_TEST_PARENT="+pipe)
	must(t, parent.Start())
	begun, err := os.ReadFile(pipe)
	if err != nil || string(begun) != "begun\n" {
		t.Fatalf("%q, %v", begun, err)
	}
	// The program holds the other end: when it is gone, what is written has no reader.
	w, err := os.OpenFile(pipe, os.O_WRONLY, 0)
	must(t, err)
	defer w.Close()
	must(t, parent.Process.Kill())
	_ = parent.Wait()
	ended := []unix.PollFd{{Fd: int32(w.Fd()), Events: unix.POLLERR}}
	n, err := unix.Poll(ended, 60_000)
	for errors.Is(err, unix.EINTR) { // Go interrupts its own threads
		n, err = unix.Poll(ended, 60_000)
	}
	if n != 1 || err != nil {
		t.Errorf("the program has not ended: %d, %v", n, err)
	}
}

// What must not end in the middle is asked to end when its time is over, and gets to an end of its own.
func TestRunWhole(t *testing.T) {
	dir := t.TempDir()
	fifo, file := filepath.Join(dir, "fifo"), filepath.Join(dir, "resumed")
	must(t, unix.Mkfifo(fifo, 0o600))
	program(t, "suspends", "trap 'echo yes >"+file+"; exit 1' TERM\necho on >"+fifo+"\nwhile :; do sleep 0.05; done\n")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = os.ReadFile(fifo) // it has begun
		cancel()
	}()
	if _, err := (Call{Name: "suspends", Whole: true}).Run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "yes\n" {
		t.Errorf("it was ended in the middle: %q, %v", text, err)
	}
}
