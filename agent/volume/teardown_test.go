package volume

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/internal/filetree"
	"github.com/berth-node/berth/internal/filetree/filetreetest"
	"github.com/berth-node/berth/internal/mount"
	"github.com/berth-node/berth/internal/mount/mounttest"
	"github.com/berth-node/berth/internal/patience"
)

// mounted bind-mounts source on target, as a container with the right to may do.
func mounted(t *testing.T, source, target string, flags uintptr) {
	t.Helper()
	must(t, unix.Mount(source, target, "", unix.MS_BIND|flags, ""))
	t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) })
}

// users returns a directory of the user's, with a file whose loss would be noticed.
func users(t *testing.T) (dir string, intact func()) {
	t.Helper()
	dir = t.TempDir()
	mounttest.Write(t, filepath.Join(dir, "deep/precious"), "data")
	return dir, func() {
		t.Helper()
		if mounttest.Read(t, filepath.Join(dir, "deep/precious")) != "data" {
			t.Error("the user's data was changed")
		}
	}
}

func TestTeardownLeavesBindMountsContent(t *testing.T) {
	needRoot(t)
	m := manager(t)
	paths := setup(t, m, podWith(emptyDir("a", "", ""), emptyDir("mem", corev1.StorageMediumMemory, "1Mi")))
	dir, intact := users(t)
	// In an emptyDir, in a tmpfs, on top of each other, below each other, and of a file.
	inA, inMem := filepath.Join(paths["a"], "x y/z"), filepath.Join(paths["mem"], "z")
	must(t, os.MkdirAll(inA, 0o755))
	must(t, os.MkdirAll(inMem, 0o755))
	mounted(t, dir, inA, 0)
	mounted(t, dir, inA, unix.MS_REC)
	mounted(t, dir, filepath.Join(inA, "deep"), 0)
	mounted(t, dir, inMem, 0)
	mounttest.Write(t, filepath.Join(paths["a"], "file"), "")
	mounted(t, filepath.Join(dir, "deep/precious"), filepath.Join(paths["a"], "file"), 0)
	mounted(t, dir, filepath.Join(string(m.root), "pods", testUID), 0)
	teardown(t, m)
	intact()
}

// A mount that is shared with the host's own: to unmount below it would unmount there too.
func TestTeardownLeavesHostsMounts(t *testing.T) {
	needRoot(t)
	m := manager(t)
	paths := setup(t, m, podWith(emptyDir("a", "", "")))
	host := t.TempDir()
	must(t, unix.Mount("t", host, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(host, unix.MNT_DETACH) })
	must(t, unix.Mount("", host, "", unix.MS_SHARED, ""))
	nested := filepath.Join(host, "nested")
	must(t, os.Mkdir(nested, 0o755))
	must(t, unix.Mount("t", nested, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(nested, unix.MNT_DETACH) })
	mounttest.Write(t, filepath.Join(nested, "precious"), "data")

	target := filepath.Join(paths["a"], "m")
	must(t, os.Mkdir(target, 0o755))
	mounted(t, host, target, unix.MS_REC)
	teardown(t, m)
	if is, err := mount.Is(nested); err != nil || !is {
		t.Errorf("the host's mount went: %v", err)
	}
	if mounttest.Read(t, filepath.Join(nested, "precious")) != "data" {
		t.Error("data was changed")
	}
}

func TestTeardownFollowsNoLink(t *testing.T) {
	needRoot(t)
	m := manager(t)
	paths := setup(t, m, podWith(emptyDir("a", "", "")))
	dir, intact := users(t)
	must(t, os.Symlink(dir, filepath.Join(paths["a"], "link")))
	must(t, os.Symlink("/", filepath.Join(paths["a"], "root")))
	must(t, os.Symlink("../../../../../..", filepath.Join(paths["a"], "up")))
	// The volume itself may be replaced by whoever can write to the directory above it.
	plugin := filepath.Dir(paths["a"])
	must(t, os.Symlink(dir, filepath.Join(plugin, "b")))
	must(t, unix.Mkfifo(filepath.Join(paths["a"], "pipe"), 0o600))
	must(t, unix.Mknod(filepath.Join(paths["a"], "dev"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))))
	teardown(t, m)
	intact()
}

// TestRelease has what a pod was, and what its containers have said, stay when its volumes go.
func TestRelease(t *testing.T) {
	m := New(Config{Root: t.TempDir()})
	paths := setup(t, m, podWith(emptyDir("a", "", "")))
	mounttest.Write(t, filepath.Join(paths["a"], "deep/f"), "x")
	pod := filepath.Join(string(m.root), "pods", testUID)
	stays := []string{"ending.json", "containers/main/0"}
	for _, f := range stays {
		mounttest.Write(t, filepath.Join(pod, f), "x")
	}
	for range 2 {
		must(t, m.Release(t.Context(), testUID))
		if _, err := os.Stat(paths["a"]); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("of the volume there is %v", err)
		}
		for _, f := range stays {
			if mounttest.Read(t, filepath.Join(pod, f)) != "x" {
				t.Errorf("%s is gone", f)
			}
		}
	}
	teardown(t, m)
}

func TestTeardownRefusesUnknownData(t *testing.T) {
	m := New(Config{Root: t.TempDir()})
	pod := filepath.Join(string(m.root), "pods", testUID)
	for _, known := range []string{"etc-hosts", "containers/main/0", "volumes/kubernetes.io~empty-dir/a/f"} {
		mounttest.Write(t, filepath.Join(pod, known), "x")
	}
	for _, unknown := range []string{"volumes/kubernetes.io~csi/v/mount/data", "volume-subpaths/v/main/0/data", "plugins/x"} {
		mounttest.Write(t, filepath.Join(pod, unknown), "precious")
		err := m.Teardown(t.Context(), testUID)
		if err == nil || !strings.Contains(err.Error(), "not known to be the pod's") {
			t.Errorf("%s: %v", unknown, err)
		}
		if mounttest.Read(t, filepath.Join(pod, unknown)) != "precious" {
			t.Errorf("%s was changed", unknown)
		}
		must(t, os.Remove(filepath.Join(pod, unknown)))
	}
	teardown(t, m)
}

// A tree deeper than a process may have descriptors, and than a path may be long.
func TestTeardownDeepTree(t *testing.T) {
	m := New(Config{Root: t.TempDir()})
	paths := setup(t, m, podWith(emptyDir("a", "", "")))
	fd, err := unix.Open(paths["a"], unix.O_RDONLY|unix.O_DIRECTORY, 0)
	must(t, err)
	for range 1500 {
		must(t, unix.Mkdirat(fd, "d", 0o700))
		must(t, unix.Mkdirat(fd, "e", 0o700))
		next, err := unix.Openat(fd, "d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		must(t, err)
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
	teardown(t, m)
}

func TestTeardownWideTree(t *testing.T) {
	m := New(Config{Root: t.TempDir()})
	paths := setup(t, m, podWith(emptyDir("a", "", "")))
	for i := range 2500 {
		mounttest.Write(t, filepath.Join(paths["a"], strings.Repeat("n", 50)+string(rune('a'+i%26))+strings.Repeat("x", i/26)), "")
	}
	teardown(t, m)
}

// TestTeardownGivesUp has a context that has ended: whoever goes on writing must not keep it at work.
func TestTeardownGivesUp(t *testing.T) {
	m := manager(t)
	paths := setup(t, m, podWith(emptyDir("a", "", "")))
	file := filepath.Join(paths["a"], "file")
	mounttest.Write(t, file, "data")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Teardown(ctx, testUID); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if mounttest.Read(t, file) != "data" {
		t.Error("it went on")
	}
	teardown(t, m)
}

// endsAfter is a context that ends when it has been asked so often.
type endsAfter struct {
	context.Context
	left int
}

func (c *endsAfter) Err() error {
	if c.left--; c.left >= 0 {
		return nil
	}
	return context.Canceled
}

// TestEmptyGivesUp ends the context at every point at which it is asked: it is never said that all has gone when it has
// not.
func TestEmptyGivesUp(t *testing.T) {
	for asked := 0; ; asked++ {
		dir := t.TempDir()
		for _, f := range []string{"a/file", "b/file"} {
			mounttest.Write(t, filepath.Join(dir, f), "x")
		}
		ctx := &endsAfter{t.Context(), asked}
		err := empty(ctx, dir, []part{{"a", nil}, {"b", nil}})
		if _, left := os.Stat(filepath.Join(dir, "b/file")); err == nil && left == nil {
			t.Errorf("ended after %d: it says that all has gone", asked)
		}
		if ctx.left >= 0 {
			return
		}
	}
}

// A tree of which each level would take a descriptor, in a volume that is given to a group and then removed.
func TestVolumeOfAnyDepth(t *testing.T) {
	needRoot(t)
	m := manager(t)
	paths := setup(t, m, podWith(emptyDir("a", "", "")))
	filetreetest.Nest(t, paths["a"], strings.Repeat("n", 100), 1500, 10)
	undo := filetreetest.FewFiles(t, 300)
	pod := podWith()
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(77))}
	must(t, takeGroup(t.Context(), new(patience.Calls), pod, paths["a"]))
	given := 0
	fd, err := openDir(paths["a"])
	must(t, err)
	must(t, filetree.Walk(t.Context(), fd, "", func(_ int, _ string, st *unix.Stat_t) error {
		if st.Gid == 77 {
			given++
		}
		return nil
	}))
	unix.Close(fd)
	if given != 1515 {
		t.Errorf("the group has %d files and directories, want 1515", given)
	}
	teardown(t, m)
	undo()
}
