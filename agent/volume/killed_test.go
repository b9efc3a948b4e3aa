package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/volume/kind"
	"github.com/berth-node/berth/internal/mount"
	"github.com/berth-node/berth/internal/mount/mounttest"
)

// killedDir tells a child of the test below where to work.
const killedDir = "BERTH_VOLUME_KILLED_DIR"

// changes are the calls by which volumes are made and taken away; a kill is tried before each call of each of them.
var changes = []string{
	"mkdirat", "mount", "umount2", "open_tree", "move_mount", "mount_setattr", "symlinkat", "renameat", "renameat2", "unlinkat",
	"fchmodat", "fchownat", "openat2",
}

func killedPod() *corev1.Pod {
	p := podWith(emptyDir("disk", "", ""), emptyDir("memory", corev1.StorageMediumMemory, "1Mi"), configMap("c"), secret("s"))
	p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(77))}
	p.Spec.Containers = []corev1.Container{{Name: "main", VolumeMounts: []corev1.VolumeMount{{Name: "disk", MountPath: "/d", SubPath: "sub"}}}}
	return p
}

func killedContent(data string) Content {
	return Content{Files: map[string][]kind.File{"c": {text("a", data), text("b/c", data)}, "s": {text("key", data)}}}
}

func chosen(name string) func(Taken) (string, error) {
	return func(Taken) (string, error) { return name, nil }
}

// TestKilledChild is what is killed: a pod's volumes are made, changed, have something of the user's mounted in them,
// and go.
func TestKilledChild(t *testing.T) {
	dir := os.Getenv(killedDir)
	if dir == "" {
		t.Skip("a part of TestKilledAnywhere")
	}
	// The calls are counted by thread.
	runtime.LockOSThread()
	ctx := context.Background()
	m, pod := New(Config{Root: filepath.Join(dir, "root")}), killedPod()
	must(t, os.MkdirAll(filepath.Join(dir, "root/pods", string(pod.UID)), 0o750))
	for _, data := range []string{"1", "2"} {
		_, err := m.Bind(pod.UID, "claimed", chosen("pv"+data))
		must(t, err)
		paths, err := m.Setup(ctx, pod, killedContent(data))
		must(t, err)
		_, err = m.SubPath(ctx, pod, "main", 0, paths["disk"], "sub")
		must(t, err)
		inside := filepath.Join(paths["disk"], "theirs")
		must(t, os.MkdirAll(inside, 0o755))
		must(t, unix.Mount(filepath.Join(dir, "user"), inside, "", unix.MS_BIND, ""))
	}
	must(t, m.Teardown(ctx, pod.UID))
}

// TestKilledAnywhere kills the agent before each call that changes something. After each, what there is can be made
// whole and taken away, and what the user has mounted in it is as it was.
func TestKilledAnywhere(t *testing.T) {
	needRoot(t)
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("needs strace to kill a process at a given call")
	}
	kills := 0
	for _, call := range changes {
		for n := 1; killedAt(t, strace, call, n); n += 1 + n/8 {
			kills++
		}
	}
	t.Logf("killed %d times", kills)
	if kills < len(changes) {
		t.Errorf("killed only %d times", kills)
	}
}

// killedAt is false when there are fewer calls of the kind.
func killedAt(t *testing.T, strace, call string, n int) bool {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{"root", "user/deep"} {
		must(t, os.MkdirAll(filepath.Join(dir, d), 0o755))
	}
	precious := filepath.Join(dir, "user/deep/precious")
	mounttest.Write(t, precious, "data")
	cmd := exec.CommandContext(t.Context(), strace, "-f", "-qq", "-o", "/dev/null", "-e", "trace="+call, "-e", fmt.Sprintf("inject=%s:signal=KILL:when=%d", call, n),
		os.Args[0], "-test.run=^TestKilledChild$")
	cmd.Env = append(os.Environ(), killedDir+"="+dir)
	out, err := cmd.CombinedOutput()
	killed := false
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		status, _ := exit.Sys().(syscall.WaitStatus)
		killed = status.Signaled()
	}
	if err != nil && !killed {
		t.Fatalf("%s %d: %v\n%s", call, n, err, out)
	}

	// The next agent finds it as it is.
	m, pod := New(Config{Root: filepath.Join(dir, "root")}), killedPod()
	where := fmt.Sprintf("killed at %s %d", call, n)
	if killed {
		must(t, os.MkdirAll(filepath.Join(dir, "root/pods", string(pod.UID)), 0o750))
		if got, err := m.Bind(pod.UID, "claimed", chosen("pv3")); err != nil || got != "pv1" && got != "pv3" {
			t.Errorf("%s: the claim is bound to %q, %v", where, got, err)
		}
		paths, err := m.Setup(t.Context(), pod, killedContent("3"))
		if err != nil {
			t.Fatalf("%s: %v", where, err)
		}
		for name, want := range map[string]string{"c": "../ ../a=3 ../b/ ../b/c=3 ..data>.. a>..data/a b>..data/b", "s": "../ ../key=3 ..data>.. key>..data/key"} {
			if got := tree(t, paths[name]); got != want {
				t.Errorf("%s: %s is %s, want %s", where, name, got, want)
			}
		}
		if _, err := m.SubPath(t.Context(), pod, "main", 0, paths["disk"], "sub"); err != nil {
			t.Errorf("%s: %v", where, err)
		}
	}
	if mounttest.Read(t, precious) != "data" {
		t.Fatalf("%s: the user's data is gone", where)
	}
	if err := m.Teardown(t.Context(), pod.UID); err != nil {
		t.Fatalf("%s: %v", where, err)
	}
	mounts, err := mount.Under(dir)
	left, _ := m.Pods()
	if err != nil || len(mounts)+len(left) > 0 {
		t.Errorf("%s: left %q and %q, %v", where, mounts, left, err)
	}
	if mounttest.Read(t, precious) != "data" {
		t.Fatalf("%s: the user's data is gone", where)
	}
	if !killed && strings.Contains(string(out), "FAIL") {
		t.Errorf("%s", out)
	}
	return killed
}
