package cri

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestLostRecords removes the records under live pods, and their copy with them. The next server knows nothing of the pods, but finds
// their directories; images and layers it finds by what is on the disk.
func TestLostRecords(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	n.run(t, pod, "main", func(cfg *runtimeapi.ContainerConfig) {
		cfg.Mounts = []*runtimeapi.Mount{{ContainerPath: "/image", Image: &runtimeapi.ImageSpec{Image: boxImage}, Readonly: true}}
	}, "sleep", "1000")
	before, err := n.Images().Get(boxImage)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(n.machine.snaps.Sync(t.Context()), n.Close()); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{n.machine.paths.db(), n.machine.paths.records()} {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
	n.open(t)
	n.checkClean2(t)
	if l := n.pods.list(nil); len(l) > 0 {
		t.Errorf("got %v", l)
	}
	if err := n.Images().Collect(t.Context()); err != nil {
		t.Error(err)
	}
	if after, err := n.Images().Get(boxImage); err != nil || !reflect.DeepEqual(after.Names(), before.Names()) || after.Size < before.Size {
		t.Errorf("image: got %+v, %v, want %+v", after, err, before)
	}
	pod, _ = n.pod(t, "b", nil)
	if got := n.output(t, pod, "main", nil, "echo", "hello"); got != "hello\n" {
		t.Errorf("a container of it says %q", got)
	}
}

// TestDamagedRecords damages the records under live pods, which go on with nothing lost.
func TestDamagedRecords(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	id := n.run(t, pod, "main", nil, "sleep", "1000")
	ended := n.run(t, pod, "short", nil, "true")
	c, err := n.ctrs.byID.get(ended)
	if err != nil {
		t.Fatal(err)
	}
	<-c.done
	before := runningPid(t, n, id)
	for name, damage := range map[string]func(path string) error{
		"gone":    os.Remove,
		"emptied": func(path string) error { return os.Truncate(path, 0) },
		"zeros":   func(path string) error { return os.WriteFile(path, make([]byte, 64<<10), 0o600) },
		"noise": func(path string) error {
			return os.WriteFile(path, bytes.Repeat([]byte("\xed\x0c\n\xff"), 9000), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := n.Close(); err != nil {
				t.Fatal(err)
			}
			if err := damage(n.machine.paths.db()); err != nil {
				t.Fatal(err)
			}
			n.open(t)
			if got := podState(t, n.Server, pod); got != runtimeapi.PodSandboxState_SANDBOX_READY {
				t.Errorf("sandbox: %v", got)
			}
			if got := runningPid(t, n, id); got != before {
				t.Errorf("process: %d, want %d", got, before)
			}
			s, err := n.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: ended})
			if err != nil || s.GetStatus().GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
				t.Errorf("the one that has ended: %v, %v", s, err)
			}
			r, err := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"echo", "here"}, Timeout: 60})
			if err != nil || string(r.GetStdout()) != "here\n" {
				t.Errorf("exec: %v, %v", r, err)
			}
			if _, err := n.Images().Get(boxImage); err != nil {
				t.Error(err)
			}
		})
	}
}

func runningPid(t *testing.T, n *node, id string) int {
	t.Helper()
	c, err := n.ctrs.byID.get(id)
	if err != nil {
		t.Fatal(err)
	}
	r := c.record()
	if r.State != containerRunning || unix.Kill(r.Pid, 0) != nil {
		t.Errorf("container is %s, process %d", r.State, r.Pid)
	}
	return r.Pid
}

// TestRebooted gives every record another boot and takes away what a boot takes away.
func TestRebooted(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	id := n.run(t, pod, "main", nil, "sleep", "1000")
	created, err := n.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: func() *runtimeapi.ContainerConfig {
		c := containerConfig("created")
		c.Image.Image = boxImage
		return c
	}()})
	if err != nil {
		t.Fatal(err)
	}
	sb, err := n.pods.byID.get(pod)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.pods.update(sb, func(r *sandboxRecord) { r.BootID = "an earlier one" }); err != nil {
		t.Fatal(err)
	}
	keeper := sb.record().Pid
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	kill(t, keeper)
	n.open(t)
	if got := podState(t, n.Server, pod); got != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
		t.Errorf("got %v", got)
	}
	if st := statusOf(t, n.Server, id); st.State != runtimeapi.ContainerState_CONTAINER_EXITED || st.ExitCode == 0 || st.FinishedAt == 0 {
		t.Errorf("got %v", st)
	}
	if _, err := n.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: created.ContainerId}); err == nil {
		t.Error("a container of an earlier boot was started")
	}
	if err := removePod(t, n.Server, pod); err != nil {
		t.Fatal(err)
	}
	n.checkClean2(t)
}

// TestOrphansAreNotFollowed puts things into the directories that are not ours, and links that lead away.
func TestOrphansAreNotFollowed(t *testing.T) {
	n := newNode(t)
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	keep := filepath.Join(t.TempDir(), "keep")
	if err := os.WriteFile(keep, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	id := strings.Repeat("ab", 32)
	dir := filepath.Join(n.cfg.RunDir, "sandboxes", id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	// A cgroup that is not the sandbox's own must not be killed on the word of a file.
	if err := os.WriteFile(filepath.Join(dir, "cgroup"), []byte(n.cfg.CgroupRoot), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Dir(keep), filepath.Join(dir, "shm")); err != nil {
		t.Fatal(err)
	}
	n.open(t)
	if _, err := os.Stat(keep); err != nil {
		t.Error(err)
	}
	n.checkClean2(t)
}
