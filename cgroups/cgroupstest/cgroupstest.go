// Package cgroupstest makes groups of the machine's hierarchies for a test, and takes them away after it. It knows a
// hierarchy by what it uses of it, so that the tests of package cgroups can use it too.
package cgroupstest

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups/internal/kernfs"
)

// Hierarchy is what is used of a cgroups.Hierarchy.
type Hierarchy interface {
	Create(path string, r *specs.LinuxResources) error
	Remove(ctx context.Context, path string) error
	Dir(controller, path string) string
	Dirs(path string) []string
	ProcsFiles(path string) []string
}

// Group opens the machine's hierarchies with cgroups.Open and names a group of this test's own, which must be gone
// everywhere at the end.
func Group[H Hierarchy](t testing.TB, open func(mountpoint string) (H, error)) (H, string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes control groups")
	}
	h, err := open("")
	if err != nil {
		t.Skipf("needs a cgroup hierarchy: %v", err)
	}
	group := fmt.Sprintf("/berth-test-%d/%s", os.Getpid(), strings.ReplaceAll(t.Name(), "/", "_"))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := h.Remove(ctx, group); err != nil {
			t.Errorf("remove %s: %v", group, err)
		}
		for _, dir := range h.Dirs(group) {
			if kernfs.Exists(dir) {
				t.Errorf("%s was left behind", dir)
			}
			_ = unix.Rmdir(strings.TrimSuffix(dir, "/"+group[strings.LastIndex(group, "/")+1:]))
		}
	})
	return h, group
}

// Create makes a group with these settings.
func Create(t testing.TB, h Hierarchy, path string, r *specs.LinuxResources) {
	t.Helper()
	if err := h.Create(path, r); err != nil {
		t.Fatal(err)
	}
}

// Expect compares a file of the group in a controller's hierarchy.
func Expect(t testing.TB, h Hierarchy, path, controller, file, want string) {
	t.Helper()
	got, err := kernfs.ReadString(h.Dir(controller, path) + "/" + file)
	if err != nil {
		t.Error(err)
		return
	}
	if strings.Join(strings.Fields(got), " ") != want {
		t.Errorf("%s %s = %q, want %q", path, file, got, want)
	}
}

// Process starts a shell in the group; it is in when this returns.
func Process(t testing.TB, h Hierarchy, path, script string) *exec.Cmd {
	t.Helper()
	var join strings.Builder
	for _, f := range h.ProcsFiles(path) {
		fmt.Fprintf(&join, "echo $$ > %s\n", f)
	}
	cmd := exec.Command("/bin/sh", "-ec", join.String()+"echo in\n"+script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "in\n" {
		t.Fatalf("process did not join %s: %q %v", path, line, err)
	}
	return cmd
}
