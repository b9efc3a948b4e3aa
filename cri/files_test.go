package cri

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/host"
)

// inUse is how much of the file system at path is taken, in bytes.
func inUse(t testing.TB, path string) int64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize
}

// TestFilesOfAPodAreBounded has a container write to the files that it is given by the sandbox, and to its shared
// memory: not as much as there is room on the file system of the run directory, and others in its pod go on.
func TestFilesOfAPodAreBounded(t *testing.T) {
	const most = 65 << 20
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	a, b := n.run(t, pod, "a", nil, "sleep", "1000"), n.run(t, pod, "b", nil, "sleep", "1000")
	sandboxes := n.core.host.Paths.Sandboxes()
	before := inUse(t, sandboxes)
	for _, path := range []string{"/etc/resolv.conf", "/etc/hostname", "/etc/hosts", "/dev/shm/x"} {
		sum, err := strconv.ParseInt(n.sh(t, a, "head -c 80000000 /dev/zero > "+path+"; stat -c %s "+path), 10, 64)
		if err != nil || sum > most {
			t.Errorf("%s can have %d bytes, %v", path, sum, err)
		}
		if more := inUse(t, sandboxes) - before; more > 1<<20 {
			t.Errorf("%s: %d bytes are taken of the file system of the run directory", path, more)
		}
	}
	if got := n.sh(t, b, "echo ok"); got != "ok" {
		t.Errorf("its neighbour says %q", got)
	}
	n.run(t, pod, "c", nil, "sleep", "1000")
	if other, _ := n.pod(t, "b", nil); n.run(t, other, "a", nil, "sleep", "1000") == "" {
		t.Error("another pod has no container")
	}
}

// TestFilesOfAnOlderVersion has a sandbox as versions have made it that had its files beside its shared memory.
func TestFilesOfAnOlderVersion(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	own := n.core.host.Paths.Sandbox(pod)
	if err := unix.Unmount(own.Shm(), 0); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{host.FileHostname: "old", host.FileResolvConf: "nameserver 9.8.7.6"} {
		if err := os.WriteFile(filepath.Join(string(own), name), []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"a", "b"} {
		id := n.run(t, pod, name, nil, "sleep", "1000")
		for script, want := range map[string]string{
			"cat /etc/hostname /etc/resolv.conf":              "old\nnameserver 9.8.7.6",
			"test -s /etc/hosts && stat -c %a /dev/shm":       "1777",
			"ln -sfn / /dev/shm/shm; cd /dev/shm/ && echo *":  "shm",
			"grep -c ' /dev/shm tmpfs .*65536k' /proc/mounts": "1",
		} {
			if got := n.sh(t, id, script); got != want {
				t.Errorf("%s: %s: %q", name, script, got)
			}
		}
	}
	if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(string(own)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what is left of it: %v", err)
	}
}
