package mount

import (
	"context"
	"errors"
	"os"
	"path/filepath"
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

// A type of file systems, which may be a pod's own word, has no program of the node run but those that mount.
func TestTypeIsNoProgram(t *testing.T) {
	dir := t.TempDir()
	ran := filepath.Join(dir, "ran")
	program(t, "mount", "echo \"$@\" >"+ran+"\n")
	program(t, "blkid", "echo TYPE=ext4\n")
	program(t, "fsck.ext4", "exit 0\n")
	var devices Devices
	for _, fsType := range []string{"fuse.reboot", "../../tmp/x", "-o", "ext4,fuse.sh", "fuse sh", "a\x00b"} {
		if err := devices.Mount(t.Context(), filepath.Join(dir, "at"), FileSystem{Device: "/dev/null", Type: fsType}); err == nil {
			t.Errorf("%q is taken", fsType)
		}
		if args, err := os.ReadFile(ran); err == nil {
			t.Fatalf("mount was run with %q", args)
		}
	}
	must(t, devices.Mount(t.Context(), filepath.Join(dir, "at"), FileSystem{Device: "/dev/null", Type: "ntfs-3g"}))
}
