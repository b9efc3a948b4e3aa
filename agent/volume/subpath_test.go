package volume

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/internal/mount"
	"github.com/berth-node/berth/internal/mount/mounttest"
)

func TestSubPath(t *testing.T) {
	needRoot(t)
	m := manager(t)
	pod := podWith(emptyDir("a", "", ""))
	vol := setup(t, m, pod)["a"]
	mounttest.Write(t, filepath.Join(vol, "dir/file"), "text")
	mounttest.Write(t, filepath.Join(vol, "single"), "one")
	must(t, os.Symlink("dir", filepath.Join(vol, "link")))
	pod.Spec.Containers[0].VolumeMounts = make([]corev1.VolumeMount, 4)
	for i := range pod.Spec.Containers[0].VolumeMounts {
		pod.Spec.Containers[0].VolumeMounts[i].Name = "a"
	}
	for idx, c := range []struct{ sub, below, want string }{
		{"dir", "file", "text"}, {"single", "", "one"}, {"link", "file", "text"}, {"./dir//file", "", "text"},
	} {
		for range 2 {
			path, err := m.SubPath(t.Context(), pod, "main", idx, vol, c.sub)
			must(t, err)
			if got := mounttest.Read(t, filepath.Join(path, c.below)); got != c.want {
				t.Errorf("%s: %q, want %q", c.sub, got, c.want)
			}
			if want := filepath.Join(string(m.root), "pods", testUID, "volume-subpaths/a/main"); filepath.Dir(path) != want {
				t.Errorf("pinned at %s, want it in %s", path, want)
			}
		}
	}
	if mounts, _ := mount.Under(string(m.root)); len(mounts) != 4 {
		t.Errorf("mounts: %v", mounts)
	}
	// After a restart of the container the same path leads elsewhere, and from a directory to a file.
	must(t, os.Rename(filepath.Join(vol, "dir"), filepath.Join(vol, "old")))
	mounttest.Write(t, filepath.Join(vol, "dir"), "now a file")
	path, err := m.SubPath(t.Context(), pod, "main", 0, vol, "dir")
	must(t, err)
	if got := mounttest.Read(t, path); got != "now a file" {
		t.Errorf("got %q", got)
	}
	teardown(t, m)
}

func TestSubPathCreates(t *testing.T) {
	needRoot(t)
	m := manager(t)
	pod := podWith(emptyDir("a", "", ""))
	group := int64(4711)
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	vol := setup(t, m, pod)["a"]
	path, err := m.SubPath(t.Context(), pod, "main", 0, vol, "x/y/z")
	must(t, err)
	mounttest.Write(t, filepath.Join(path, "f"), "text")
	if got := mounttest.Read(t, filepath.Join(vol, "x/y/z/f")); got != "text" {
		t.Errorf("got %q", got)
	}
	for _, d := range []string{"x", "x/y", "x/y/z"} {
		var st unix.Stat_t
		must(t, unix.Stat(filepath.Join(vol, d), &st))
		if st.Mode&0o7777 != 0o2777 || st.Gid != 4711 {
			t.Errorf("%s: mode %o, group %d", d, st.Mode&0o7777, st.Gid)
		}
	}
	teardown(t, m)
}

func TestSubPathRefuses(t *testing.T) {
	needRoot(t)
	m := manager(t)
	pod := podWith(emptyDir("a", "", ""))
	vol := setup(t, m, pod)["a"]
	dir, intact := users(t)
	must(t, os.Symlink(dir, filepath.Join(vol, "abs")))
	must(t, os.Symlink("../../..", filepath.Join(vol, "up")))
	must(t, os.Symlink("nowhere", filepath.Join(vol, "dangling")))
	must(t, os.Symlink("loop", filepath.Join(vol, "loop")))
	must(t, os.Symlink("/proc/self/root", filepath.Join(vol, "magic")))
	mounttest.Write(t, filepath.Join(vol, "file"), "x")
	for sub, want := range map[string]string{
		"/etc": "relative", "..": "'..'", "x/../../y": "'..'",
		"abs": "out of the volume", "abs/deep": "out of the volume", "abs/new": "out of the volume", "up": "out of the volume", "up/x": "out of the volume",
		"dangling": "", "dangling/x": "", "loop": "", "magic": "", "file/x": "no directory",
	} {
		if path, err := m.SubPath(t.Context(), pod, "main", 0, vol, sub); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %s %v, want %q", sub, path, err, want)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "new")); !os.IsNotExist(err) {
		t.Error("made a directory outside of the volume")
	}
	for _, c := range []struct {
		container string
		idx       int
	}{{"../main", 0}, {"other", 0}, {"main", 7}, {"main", -1}, {"", 0}} {
		if _, err := m.SubPath(t.Context(), pod, c.container, c.idx, vol, "x"); err == nil {
			t.Errorf("container %q, mount %d: no error", c.container, c.idx)
		}
	}
	intact()
	teardown(t, m)
}

// A container swaps a directory for a link to the host again and again while its neighbour starts.
func TestSubPathRace(t *testing.T) {
	needRoot(t)
	m := manager(t)
	pod := podWith(emptyDir("a", "", ""))
	vol := setup(t, m, pod)["a"]
	outside, intact := users(t)
	must(t, os.MkdirAll(filepath.Join(vol, "good/deep"), 0o755))
	must(t, os.Symlink(outside, filepath.Join(vol, "evil")))
	must(t, os.Symlink("good", filepath.Join(vol, "at")))
	done := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(vol, "good"), unix.AT_FDCWD, filepath.Join(vol, "evil"), unix.RENAME_EXCHANGE)
		}
	})
	pinned := 0
	// Who swaps them may stand still for a while, and leave the evil one in place.
	for tries := 0; tries < 300 || pinned == 0; tries++ {
		path, err := m.SubPath(t.Context(), pod, "main", 0, vol, "at/deep")
		if err != nil {
			continue
		}
		pinned++
		if _, err := os.Lstat(filepath.Join(path, "precious")); err == nil {
			t.Fatal("got out of the volume")
		}
	}
	close(done)
	wait.Wait()
	teardown(t, m)
	intact()
}

// The volume is the host's: what is mounted below it is seen, and survives the pod.
func TestSubPathOfHostPath(t *testing.T) {
	needRoot(t)
	m := manager(t)
	host := t.TempDir()
	must(t, unix.Mount("t", host, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(host, unix.MNT_DETACH) })
	must(t, unix.Mount("", host, "", unix.MS_SHARED, ""))
	nested := filepath.Join(host, "sub/nested")
	must(t, os.MkdirAll(nested, 0o755))
	must(t, unix.Mount("t", nested, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(nested, unix.MNT_DETACH) })
	mounttest.Write(t, filepath.Join(nested, "precious"), "data")
	for _, mode := range []corev1.MountPropagationMode{corev1.MountPropagationNone, corev1.MountPropagationBidirectional} {
		pod := podWith(hostPath("h", host, ""))
		pod.Spec.Containers[0].VolumeMounts[0].MountPropagation = &mode
		vol := setup(t, m, pod)["h"]
		path, err := m.SubPath(t.Context(), pod, "main", 0, vol, "sub")
		must(t, err)
		if got := mounttest.Read(t, filepath.Join(path, "nested/precious")); got != "data" {
			t.Errorf("got %q", got)
		}
		// Only what is shared comes back to the host.
		inner := filepath.Join(path, "inner")
		must(t, os.MkdirAll(inner, 0o755))
		must(t, unix.Mount("t", inner, "tmpfs", 0, ""))
		back, err := mount.Is(filepath.Join(host, "sub/inner"))
		must(t, err)
		if back != (mode == corev1.MountPropagationBidirectional) {
			t.Errorf("%s: a mount of the pod is seen by the host: %v", mode, back)
		}
		teardown(t, m)
		if is, err := mount.Is(nested); err != nil || !is {
			t.Fatalf("%s: the host's mount went: %v", mode, err)
		}
		_ = unix.Unmount(filepath.Join(host, "sub/inner"), 0)
	}
	if mounttest.Read(t, filepath.Join(nested, "precious")) != "data" {
		t.Error("data was changed")
	}
}
