package cri

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestLostRecords removes the records under live pods. The next server knows nothing of them, but finds their directories.
func TestLostRecords(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	n.run(t, pod, "main", func(cfg *runtimeapi.ContainerConfig) {
		cfg.Mounts = []*runtimeapi.Mount{{ContainerPath: "/image", Image: &runtimeapi.ImageSpec{Image: boxImage}}}
	}, "sleep", "1000")
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(n.cfg.RootDir, "runtime.db")); err != nil {
		t.Fatal(err)
	}
	n.open(t)
	n.checkClean2(t)
	if l := n.pods.list(nil); len(l) > 0 {
		t.Errorf("got %v", l)
	}
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
