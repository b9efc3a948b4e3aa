package snapshot

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// otherIDs is a user namespace that a process holds until the test ends.
func otherIDs(t *testing.T) *IDs {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts")
	}
	cmd := exec.Command("sleep", "1000")
	m := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 1 << 20, Size: 1 << 16}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: m, GidMappings: m}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &IDs{UserNS: fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid), UID: 1 << 20, GID: 1 << 20}
}

func owner(t *testing.T, path string) uint32 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Uid
}

// TestMappedIDs mounts layers with other ids, in both ways that there are for it.
func TestMappedIDs(t *testing.T) {
	ids := otherIDs(t)
	if err := TryIDs(t.TempDir(), *ids); err != nil {
		t.Skip(err)
	}
	for name, mount := range map[string]func(Mount, []*os.File, string) error{"detached": Mount.overlayOf, "apart": Mount.overlayApart} {
		dir := t.TempDir()
		path := func(s string) string { return filepath.Join(dir, s) }
		for _, d := range []string{"a", "b/sub", "u", "w", "m"} {
			if err := os.MkdirAll(path(d), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for file, uid := range map[string]int{"a/file": 0, "b/sub/user": 1000} {
			if err := os.WriteFile(path(file), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.Chown(path(file), uid, uid); err != nil {
				t.Fatal(err)
			}
		}
		m := Mount{Type: "overlay", Source: "overlay", IDs: ids, Options: append([]string{
			"upperdir=" + path("u"), "workdir=" + path("w"), "lowerdir=" + path("a") + ":" + path("b"),
		}, overlayOptions()...)}
		if err := m.IDs.own(path("u"), path("a")); err != nil {
			t.Fatal(err)
		}
		var layers []*os.File
		for _, l := range []string{"a", "b"} {
			f, err := ids.clone(path(l))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			layers = append(layers, f)
		}
		err := mount(m, layers, path("m"))
		if err != nil && name == "detached" {
			t.Logf("%s: %v", name, err) // this kernel is older than that
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		t.Cleanup(func() {
			if err := Unmount(path("m")); err != nil {
				t.Error(err)
			}
		})
		for file, want := range map[string]uint32{"m": 1 << 20, "m/file": 1 << 20, "m/sub/user": 1<<20 + 1000, "a/file": 0} {
			if got := owner(t, path(file)); got != want {
				t.Errorf("%s: %s belongs to %d, want %d", name, file, got, want)
			}
		}
		// What is written goes up with the ids it is seen with.
		if err := os.Chmod(path("m/sub/user"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := owner(t, path("u/sub/user")); got != 1<<20+1000 {
			t.Errorf("%s: copied up it belongs to %d", name, got)
		}
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		at := 0
		for line := range strings.Lines(string(mounts)) {
			if strings.HasPrefix(strings.Fields(line)[4], dir) {
				at++
				if _, options, _ := strings.Cut(line, " - "); strings.Contains(options, "/proc") {
					t.Errorf("%s: the mount names a path in /proc: %s", name, line)
				}
			}
		}
		if at != 1 {
			t.Errorf("%s: more is mounted than the target", name)
		}
	}
}
