package cri

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/berth-node/berth/cri/container"
	"github.com/berth-node/berth/cri/sandbox"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// lose takes the records of a closed server away, and their copy with them.
func (n *node) lose(t testing.TB, how func(path string) error) {
	t.Helper()
	for _, f := range []string{n.core.host.Paths.DB(), n.core.host.Paths.RecordsCopy()} {
		if err := how(f); err != nil {
			t.Fatal(err)
		}
	}
}

func noise(path string) error {
	return os.WriteFile(path, bytes.Repeat([]byte("\xed\x0c\n\xff"), 9000), 0o600)
}

// TestLostRecords removes the records under live pods, and their copy with them. The next server adopts the pods by
// what they have of their own; images and layers it finds by what is on the disk, whether or not that was synced.
func TestLostRecords(t *testing.T) {
	for name, how := range map[string]func(string) error{"gone": os.Remove, "noise": noise} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			pod, cfg := n.pod(t, "a", func(cfg *runtimeapi.PodSandboxConfig) { cfg.Labels = map[string]string{"is": "kept"} })
			id := n.run(t, pod, "main", func(cfg *runtimeapi.ContainerConfig) {
				cfg.Mounts = []*runtimeapi.Mount{{ContainerPath: "/image", Image: &runtimeapi.ImageSpec{Image: boxImage}, Readonly: true}}
			}, "sleep", "1000")
			ended := n.run(t, pod, "short", nil, "false")
			waitExited(t, n.Server, ended)
			gone := n.run(t, pod, "removed", nil, "true")
			waitExited(t, n.Server, gone)
			if _, err := n.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: gone}); err != nil {
				t.Fatal(err)
			}
			n.sh(t, id, "echo mine >/own")
			before, err := n.Local().Images().Get(boxImage)
			if err != nil {
				t.Fatal(err)
			}
			pid, keeper := n.initPid(t, id), n.keeperPid(t, pod)
			status, err := n.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod})
			if err != nil {
				t.Fatal(err)
			}
			if err := n.Close(); err != nil {
				t.Fatal(err)
			}
			n.lose(t, how)
			n.open(t)
			after, err := n.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod})
			if err != nil || !proto.Equal(after.GetStatus(), status.GetStatus()) {
				t.Errorf("sandbox: got %v, %v, want %v", after.GetStatus(), err, status.GetStatus())
			}
			if n.initPid(t, id) != pid || n.keeperPid(t, pod) != keeper {
				t.Error("the pod is not what it was")
			}
			if got := n.sh(t, id, "cat /own; ls /image | head -1"); !strings.HasPrefix(got, "mine\n") || got == "mine\n" {
				t.Errorf("its files are %q", got)
			}
			if st := statusOf(t, n.Server, ended); st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || st.GetExitCode() != 1 {
				t.Errorf("the one that has ended: %v", st)
			}
			if l := n.core.ctrs.Table.List(nil); len(l) != 2 {
				t.Errorf("containers: %v", l)
			}
			st, err := n.Status(t.Context(), &runtimeapi.StatusRequest{Verbose: true})
			if err != nil || !strings.Contains(st.GetInfo()["info"], `"adopted":1`) {
				t.Errorf("status says %v, %v", st.GetInfo(), err)
			}
			if _, err := n.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: cfg}); err == nil {
				t.Error("the pod was made a second time")
			}
			if err := n.Local().Images().Collect(t.Context()); err != nil {
				t.Error(err)
			}
			if again, err := n.Local().Images().Get(boxImage); err != nil || !reflect.DeepEqual(again.Names(), before.Names()) || again.Size < before.Size {
				t.Errorf("image: got %+v, %v, want %+v", again, err, before)
			}
			if got := n.output(t, pod, "more", nil, "echo", "hello"); got != "hello\n" {
				t.Errorf("another container of the pod says %q", got)
			}
			if err := errors.Join(n.Close()); err != nil { // what was adopted is on record again
				t.Fatal(err)
			}
			n.open(t)
			if n.initPid(t, id) != pid {
				t.Error("the pod is not what it was, a start later")
			}
			if err := removePod(t, n.Server, pod); err != nil {
				t.Fatal(err)
			}
			n.checkClean2(t)
		})
	}
}

// TestLostAndDamagedRecords has, beside the records, those damaged that one pod has of its own. That pod is left as it
// is, the other one is adopted.
func TestLostAndDamagedRecords(t *testing.T) {
	n := newNode(t)
	pod, cfg := n.pod(t, "a", nil)
	id := n.run(t, pod, "main", nil, "sleep", "1000")
	other, _ := n.pod(t, "b", nil)
	healthy, hurt := n.run(t, other, "main", nil, "sleep", "1000"), n.run(t, other, "hurt", nil, "sleep", "1000")
	first, second, third := n.initPid(t, id), n.initPid(t, healthy), n.initPid(t, hurt)
	n.keeperPid(t, pod)
	n.keeperPid(t, other)
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n.lose(t, os.Remove)
	if err := errors.Join(noise(n.core.host.Paths.Sandbox(pod).Record()), noise(n.core.host.Paths.Sandbox(other).ContainerRecord(hurt))); err != nil {
		t.Fatal(err)
	}
	n.open(t)
	if n.initPid(t, healthy) != second || n.sh(t, healthy, "echo ok") != "ok" {
		t.Error("the other pod is not what it was")
	}
	if !lives(first) || !lives(third) {
		t.Error("what cannot be read has ended")
	}
	if got := n.problem(t, other); !strings.Contains(got, hurt) {
		t.Errorf("problem is %q", got)
	}
	st, err := n.Status(t.Context(), &runtimeapi.StatusRequest{Verbose: true})
	if err != nil || !strings.Contains(st.GetInfo()["info"], pod) {
		t.Errorf("status says %v, %v", st.GetInfo(), err)
	}
	if _, err := n.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: cfg}); err == nil || !strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("a second one of the pod: %v", err)
	}
	for _, p := range []string{pod, other} {
		if err := removePod(t, n.Server, p); err != nil {
			t.Error(err)
		}
	}
	n.checkClean2(t)
}

// TestDamagedRecords damages the records under live pods, which go on with nothing lost.
func TestDamagedRecords(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	id := n.run(t, pod, "main", nil, "sleep", "1000")
	ended := n.run(t, pod, "short", nil, "true")
	c, err := n.core.ctrs.Table.ByID.Get(ended)
	if err != nil {
		t.Fatal(err)
	}
	<-c.Done
	before := runningPid(t, n, id)
	for name, damage := range map[string]func(path string) error{
		"gone":    os.Remove,
		"emptied": func(path string) error { return os.Truncate(path, 0) },
		"zeros":   func(path string) error { return os.WriteFile(path, make([]byte, 64<<10), 0o600) },
		"noise":   noise,
	} {
		t.Run(name, func(t *testing.T) {
			if err := n.Close(); err != nil {
				t.Fatal(err)
			}
			if err := damage(n.core.host.Paths.DB()); err != nil {
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
			if _, err := n.Local().Images().Get(boxImage); err != nil {
				t.Error(err)
			}
		})
	}
}

func runningPid(t *testing.T, n *node, id string) int {
	t.Helper()
	c, err := n.core.ctrs.Table.ByID.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	r := c.Record()
	if r.State != container.Running || unix.Kill(r.Pid, 0) != nil {
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
	sb, err := n.core.pods.Table.ByID.Get(pod)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.core.pods.Table.Update(sb, func(r *sandbox.Record) { r.BootID = "an earlier one" }); err != nil {
		t.Fatal(err)
	}
	keeper := sb.Record().Pid
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
