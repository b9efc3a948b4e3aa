package mount

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseBlkid(t *testing.T) {
	for out, want := range map[string]string{
		"DEVNAME=/dev/loop0\nTYPE=ext4\n": "ext4", "DEVNAME=/dev/sda\nPTTYPE=gpt\n": "a partition table (gpt)", "TYPE=crypto_LUKS\n": "crypto_LUKS",
	} {
		if got, err := parseBlkid(out); err != nil || got != want {
			t.Errorf("%q: got %q, %v", out, got, err)
		}
	}
	if _, err := parseBlkid("DEVNAME=/dev/sda\n"); err == nil {
		t.Error("an answer without an answer was taken")
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

// A device that does not answer holds up who wants it, no longer than he wants to wait, and nobody who wants another.
func TestDeviceThatHangs(t *testing.T) {
	dir := t.TempDir()
	fifo, at := filepath.Join(dir, "fifo"), filepath.Join(dir, "at")
	must(t, unix.Mkfifo(fifo, 0o600))
	for _, tool := range []string{"fsck.ext4", "mount"} {
		program(t, tool, "exit 0\n")
	}
	program(t, "blkid", `for d; do :; done; if [ "$d" = /dev/null ]; then echo on >`+fifo+"; exec sleep 1000; fi; echo TYPE=ext4\n")
	var devices Devices
	ctx, cancel := context.WithCancel(t.Context())
	hangs := make(chan error)
	go func() { hangs <- devices.Mount(ctx, at, FileSystem{Device: "/dev/null"}) }()
	_, err := os.ReadFile(fifo) // it is being looked at
	must(t, err)
	must(t, devices.Mount(t.Context(), at, FileSystem{Device: "/dev/zero"}))
	late, give := context.WithCancel(t.Context())
	give()
	if err := devices.Mount(late, at, FileSystem{Device: "/dev/null"}); !errors.Is(err, context.Canceled) {
		t.Errorf("it waits: %v", err)
	}
	cancel()
	if err := <-hangs; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	program(t, "blkid", "echo TYPE=ext4\n")
	must(t, devices.Mount(t.Context(), at, FileSystem{Device: "/dev/null"}))
}
