package volume

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/internal/mount"
)

// What a privileged container mounts into a volume with Bidirectional propagation comes out on the node: in the
// emptyDir of the pod. Mounts that the container stacked, moved, and made read-only there go, and what is in them
// stays.
func TestTeardownOfMountsThatCameOut(t *testing.T) {
	needRoot(t)
	m := manager(t)
	paths := setup(t, m, podWith(emptyDir("a", "", "")))
	dir, intact := users(t)
	out := filepath.Join(paths["a"], "out")
	must(t, os.MkdirAll(filepath.Join(out, "in"), 0o755))
	// The volume as the container has it: shared with the node's.
	must(t, unix.Mount(paths["a"], paths["a"], "", unix.MS_BIND, ""))
	must(t, unix.Mount("", paths["a"], "", unix.MS_SHARED, ""))
	seen := t.TempDir()
	must(t, unix.Mount(paths["a"], seen, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = mount.UnmountUnder(seen) })
	must(t, unix.Mount(dir, filepath.Join(seen, "out"), "", unix.MS_BIND, ""))
	must(t, unix.Mount("", filepath.Join(seen, "out"), "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	must(t, unix.Mount("t", filepath.Join(seen, "out/deep"), "tmpfs", 0, ""))
	must(t, unix.Mount(dir, filepath.Join(seen, "out/deep"), "", unix.MS_BIND|unix.MS_REC, ""))
	// The container has ended, and with it its mounts.
	must(t, mount.UnmountUnder(seen))
	if is, err := mount.Is(out); err != nil || !is {
		t.Fatalf("the mount has not come out: %v", err)
	}
	teardown(t, m)
	intact()
}

// The agent's own directories are no host paths, however they are named; nor are local volumes.
func TestHostPathIntoOwnDirectories(t *testing.T) {
	needRoot(t)
	m := manager(t)
	victim := filepath.Join(string(m.root), "pods", "other", "volumes/kubernetes.io~secret/s")
	must(t, os.MkdirAll(victim, 0o755))
	out := t.TempDir()
	link := filepath.Join(out, "link")
	must(t, os.Symlink(string(m.root), link))
	must(t, os.Symlink("link/pods", filepath.Join(out, "hop")))
	bound := filepath.Join(out, "bound")
	must(t, os.Mkdir(bound, 0o755))
	mounted(t, string(m.root), bound, 0)
	for _, path := range []string{
		string(m.root), string(m.root) + "/", victim, filepath.Join(string(m.root), "pods/../pods"), link, link + "/pods/other", filepath.Join(out, "hop"), filepath.Join(out, "hop/other/new"),
		bound, filepath.Join(bound, "pods/other"), filepath.Join(bound, "not/yet"),
	} {
		for _, kind := range []corev1.HostPathType{corev1.HostPathUnset, corev1.HostPathDirectoryOrCreate} {
			_, err := m.Setup(t.Context(), podWith(hostPath("v", path, kind)), Content{})
			if err == nil || !strings.Contains(err.Error(), "agent's own") {
				t.Errorf("hostPath %s (%s): %v", path, kind, err)
			}
		}
		pod, content := claimed(persistent(corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path}}, corev1.PersistentVolumeFilesystem))
		if _, err := m.Setup(t.Context(), pod, content); err == nil || !strings.Contains(err.Error(), "agent's own") {
			t.Errorf("local %s: %v", path, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(string(m.root), "not")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was made in the agent's own directory: %v", err)
	}
	teardown(t, m)
}

// A container that shares a volume swaps a directory for a link out of it while another one's subPath is looked up,
// again and again.
func TestSubPathAgainstSwaps(t *testing.T) {
	needRoot(t)
	m := manager(t)
	pod := podWith(emptyDir("a", "", ""))
	pod.Spec.Containers[0].VolumeMounts[0].SubPathExpr = "x/y"
	paths := setup(t, m, pod)
	dir, intact := users(t)
	must(t, os.MkdirAll(filepath.Join(paths["a"], "x/y"), 0o755))
	must(t, os.MkdirAll(filepath.Join(dir, "y"), 0o755))
	must(t, os.Symlink(dir, filepath.Join(paths["a"], "evil")))
	var outside unix.Stat_t
	must(t, unix.Stat(filepath.Join(dir, "y"), &outside))
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(paths["a"], "evil"), unix.AT_FDCWD, filepath.Join(paths["a"], "x"), unix.RENAME_EXCHANGE)
		}
	})
	inside := 0
	for range 2000 {
		target, err := m.SubPath(t.Context(), pod, "main", 0, paths["a"], "x/y")
		if err != nil {
			continue // it leads out of the volume just now
		}
		inside++
		var st unix.Stat_t
		must(t, unix.Stat(target, &st))
		if st.Dev == outside.Dev && st.Ino == outside.Ino {
			t.Fatal("a directory of the host was pinned")
		}
	}
	stop()
	wg.Wait()
	if inside == 0 {
		t.Error("the path was never found")
	}
	teardown(t, m)
	intact()
}
