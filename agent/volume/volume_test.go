package volume

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/internal/mount"
	"github.com/berth-node/berth/internal/mount/mounttest"
)

const testUID = "0123456789abcdef"

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts file systems")
	}
}

// manager returns a Manager on a root of its own, and proves at the end that no mount is left there.
func manager(t *testing.T) *Manager {
	t.Helper()
	return New(Config{Root: mounttest.Root(t)})
}

func podWith(volumes ...corev1.Volume) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: testUID}}
	pod.Spec.Volumes = volumes
	pod.Spec.Containers = []corev1.Container{{Name: "main"}}
	for _, v := range volumes {
		pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
	}
	return pod
}

func emptyDir(name string, medium corev1.StorageMedium, limit string) corev1.Volume {
	e := &corev1.EmptyDirVolumeSource{Medium: medium}
	if limit != "" {
		q := resource.MustParse(limit)
		e.SizeLimit = &q
	}
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: e}}
}

func hostPath(name, path string, kind corev1.HostPathType) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &kind}}}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func setup(t *testing.T, m *Manager, pod *corev1.Pod) map[string]string {
	t.Helper()
	paths, err := m.Setup(t.Context(), pod, Content{})
	must(t, err)
	return paths
}

func teardown(t *testing.T, m *Manager) {
	t.Helper()
	must(t, m.Teardown(t.Context(), testUID))
	if _, err := os.Lstat(filepath.Join(string(m.root), "pods", testUID)); !os.IsNotExist(err) {
		t.Errorf("the pod's directory is left: %v", err)
	}
}

func TestEmptyDir(t *testing.T) {
	needRoot(t)
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	m := manager(t)
	pod := podWith(emptyDir("a", "", ""), emptyDir("b", "", ""))
	group := int64(4711)
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	mode := int32(0o1750)
	pod.Spec.Volumes[1].EmptyDir.Mode = &mode
	paths := setup(t, m, pod)
	for name, want := range map[string]uint32{"a": 0o2777, "b": 0o3770} {
		var st unix.Stat_t
		must(t, unix.Stat(paths[name], &st))
		if st.Mode&0o7777 != want || st.Gid != 4711 {
			t.Errorf("volume %s has mode %o and group %d, want %o", name, st.Mode&0o7777, st.Gid, want)
		}
	}
	if want := filepath.Join(string(m.root), "pods", testUID, "volumes/kubernetes.io~empty-dir/a"); paths["a"] != want {
		t.Errorf("path %s, want %s", paths["a"], want)
	}
	mounttest.Write(t, filepath.Join(paths["a"], "x/y"), "data")
	must(t, os.Chmod(paths["a"], 0o700))
	setup(t, m, pod)
	if mounttest.Read(t, filepath.Join(paths["a"], "x/y")) != "data" {
		t.Error("a second Setup lost data")
	}
	if info, err := os.Stat(paths["a"]); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("a second Setup changed what the pod had set: %v %v", info.Mode(), err)
	}
	if uids, err := m.Pods(); err != nil || len(uids) != 1 || uids[0] != testUID {
		t.Errorf("Pods: %v %v", uids, err)
	}
	teardown(t, m)
	teardown(t, m)
	if uids, err := m.Pods(); err != nil || len(uids) != 0 {
		t.Errorf("Pods: %v %v", uids, err)
	}
}

func TestEmptyDirInMemory(t *testing.T) {
	needRoot(t)
	m := manager(t)
	pod := podWith(emptyDir("limited", corev1.StorageMediumMemory, "8Mi"), emptyDir("podlimit", corev1.StorageMediumMemory, "1Gi"))
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("32Mi")}
	group := int64(4711)
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	paths := setup(t, m, pod)
	for name, want := range map[string]int64{"limited": 8 << 20, "podlimit": 32 << 20} {
		var fs unix.Statfs_t
		must(t, unix.Statfs(paths[name], &fs))
		if fs.Type != unix.TMPFS_MAGIC || int64(fs.Blocks)*fs.Bsize != want {
			t.Errorf("%s: type %x with %d bytes, want %d", name, fs.Type, int64(fs.Blocks)*fs.Bsize, want)
		}
		var st unix.Stat_t
		must(t, unix.Stat(paths[name], &st))
		if st.Mode&0o7777 != 0o2777 || st.Gid != 4711 {
			t.Errorf("%s: mode %o, group %d", name, st.Mode&0o7777, st.Gid)
		}
	}
	mounttest.Write(t, filepath.Join(paths["limited"], "f"), "x")
	setup(t, m, pod)
	if mounts, _ := mount.Under(string(m.root)); len(mounts) != 2 {
		t.Errorf("a second Setup mounted again: %v", mounts)
	}
	// A process that still stands in it does not keep the volume.
	f, err := os.Open(filepath.Join(paths["limited"], "f"))
	must(t, err)
	defer f.Close()
	teardown(t, m)
}

func TestEmptyDirAfterReboot(t *testing.T) {
	needRoot(t)
	m := manager(t)
	pod := podWith(emptyDir("mem", corev1.StorageMediumMemory, "8Mi"))
	paths := setup(t, m, pod)
	must(t, unix.Unmount(paths["mem"], 0))
	setup(t, m, pod)
	if is, err := mount.Is(paths["mem"]); err != nil || !is {
		t.Errorf("not mounted again: %v", err)
	}
	// A crash left a directory half made.
	must(t, os.Mkdir(filepath.Join(filepath.Dir(paths["mem"]), stagingPrefix+"other"), 0o700))
	pod.Spec.Volumes = append(pod.Spec.Volumes, emptyDir("other", "", ""))
	paths = setup(t, m, pod)
	if info, err := os.Stat(paths["other"]); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("%v %v", info, err)
	}
	teardown(t, m)
}

func TestHostPathTypes(t *testing.T) {
	needRoot(t)
	m := manager(t)
	dir := t.TempDir()
	mounttest.Write(t, filepath.Join(dir, "file"), "x")
	must(t, os.Symlink("file", filepath.Join(dir, "link")))
	must(t, unix.Mknod(filepath.Join(dir, "char"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))))
	must(t, unix.Mknod(filepath.Join(dir, "block"), unix.S_IFBLK|0o600, int(unix.Mkdev(7, 200))))
	must(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	must(t, err)
	defer unix.Close(fd)
	sock := filepath.Join(t.TempDir(), "s")
	if len(sock) > 100 {
		t.Skip("temporary directory has too long a path for a socket")
	}
	must(t, unix.Bind(fd, &unix.SockaddrUnix{Name: sock}))
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, c := range []struct {
		path string
		kind corev1.HostPathType
		want string
	}{
		{dir, "", ""},
		{at("file"), "", ""},
		{at("new/deep"), "", ""},
		{dir, "Directory", ""},
		{at("file"), "Directory", "is a file, but its type says Directory: it must be a directory"},
		{at("none"), "Directory", "does not exist"},
		{at("made/deep"), "DirectoryOrCreate", ""},
		{at("made/deep"), "DirectoryOrCreate", ""},
		{at("file"), "DirectoryOrCreate", "must be a directory"},
		{at("file"), "File", ""},
		{at("link"), "File", ""},
		{dir, "File", "must be a file"},
		{at("none"), "File", "does not exist"},
		{at("pipe"), "File", "is a pipe"},
		{at("madefile"), "FileOrCreate", ""},
		{at("madefile"), "FileOrCreate", ""},
		{at("no/dir/file"), "FileOrCreate", "its directory does not exist"},
		{dir, "FileOrCreate", "must be a file"},
		{sock, "Socket", ""},
		{at("file"), "Socket", "must be a socket"},
		{at("char"), "CharDevice", ""},
		{at("block"), "CharDevice", "is a block device"},
		{at("block"), "BlockDevice", ""},
		{at("char"), "BlockDevice", "is a character device"},
		{at("file/below"), "", "not a directory"},
		{"relative", "", "not absolute"},
		{dir, "Bogus", "unknown type"},
	} {
		paths, err := m.Setup(t.Context(), podWith(hostPath("h", c.path, c.kind)), Content{})
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s as %q: %v", c.path, c.kind, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s as %q: %v, want %q", c.path, c.kind, err, c.want)
		case c.want == "" && paths["h"] != c.path:
			t.Errorf("path %s, want %s", paths["h"], c.path)
		}
	}
	teardown(t, m)
	for _, name := range []string{"file", "madefile", "made/deep", "new/deep", "char", "link"} {
		if _, err := os.Lstat(at(name)); err != nil {
			t.Errorf("the host's %s went with the pod: %v", name, err)
		}
	}
}

func TestHostPathOfTheAgent(t *testing.T) {
	own := t.TempDir()
	m := New(Config{Root: t.TempDir(), Own: []string{own}})
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(string(m.root), link))
	for _, path := range []string{string(m.root), string(m.root) + "/pods/x", own, link + "/content", filepath.Dir(string(m.root)) + "/./" + filepath.Base(string(m.root))} {
		if _, err := m.Setup(t.Context(), podWith(hostPath("h", path, "")), Content{}); err == nil || !strings.Contains(err.Error(), "agent's own") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := m.Setup(t.Context(), podWith(hostPath("h", string(m.root)+"x", "")), Content{}); err != nil {
		t.Errorf("a neighbour was refused: %v", err)
	}
}

func TestHostileUID(t *testing.T) {
	m := New(Config{Root: t.TempDir()})
	mounttest.Write(t, filepath.Join(string(m.root), "content/blob"), "x")
	for _, uid := range []string{"", ".", "..", "../content", "a/b", strings.Repeat("x", 300)} {
		pod := podWith(emptyDir("a", "", ""))
		pod.UID = "x"
		if err := m.Teardown(t.Context(), pod.UID); err != nil {
			t.Errorf("of a pod that never was: %v", err)
		}
		pod.UID = types.UID(uid)
		if _, err := m.Setup(t.Context(), pod, Content{}); err == nil {
			t.Errorf("Setup took uid %q", uid)
		}
		if err := m.Teardown(t.Context(), pod.UID); err == nil {
			t.Errorf("Teardown took uid %q", uid)
		}
	}
	if mounttest.Read(t, filepath.Join(string(m.root), "content/blob")) != "x" {
		t.Error("something else was removed")
	}
}

func TestPageSize(t *testing.T) {
	pod := podWith()
	if n, err := pageSize(pod, "HugePages-2Mi"); err != nil || n != 2<<20 {
		t.Errorf("%d %v", n, err)
	}
	if _, err := pageSize(pod, "HugePages"); err == nil {
		t.Error("no size, and no error")
	}
	if n, err := pageSize(pod, "HugePages-1e-999999999"); err == nil {
		t.Errorf("a size that takes for ever to calculate: %d", n)
	}
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"hugepages-1Gi": resource.MustParse("1Gi")}
	if n, err := pageSize(pod, "HugePages"); err != nil || n != 1<<30 {
		t.Errorf("%d %v", n, err)
	}
	pod.Spec.Containers[0].Resources.Limits["hugepages-2Mi"] = resource.MustParse("2Mi")
	if _, err := pageSize(pod, "HugePages"); err == nil {
		t.Error("two sizes, and no error")
	}
}

func TestMemorySize(t *testing.T) {
	pod := podWith(emptyDir("a", corev1.StorageMediumMemory, ""))
	whole := memorySize(pod, pod.Spec.Volumes[0].EmptyDir)
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "second"})
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("32Mi")}
	if n := memorySize(pod, pod.Spec.Volumes[0].EmptyDir); n != whole {
		t.Errorf("%d: a container without a limit was forgotten", n)
	}
	pod.Spec.Containers[1].Resources.Limits = pod.Spec.Containers[0].Resources.Limits
	if n := memorySize(pod, pod.Spec.Volumes[0].EmptyDir); n != 64<<20 {
		t.Errorf("%d, want the sum of the limits", n)
	}
	zero := resource.MustParse("0")
	if n := memorySize(pod, &corev1.EmptyDirVolumeSource{SizeLimit: &zero}); n != 64<<20 {
		t.Errorf("%d: a limit of zero is none", n)
	}
}

func TestHostsFile(t *testing.T) {
	pod := podWith()
	pod.Spec.HostAliases = []corev1.HostAlias{{IP: "10.1.2.3", Hostnames: []string{"a.local", "b.local"}}}
	got := string(HostsFile(pod, "web", "web.sub.default.svc.cluster.local", []string{"10.0.0.5", "fd00::5"}, nil))
	for _, want := range []string{"127.0.0.1\tlocalhost\n", "10.0.0.5\tweb.sub.default.svc.cluster.local\tweb\n", "fd00::5\tweb.sub", "\n10.1.2.3\ta.local\tb.local\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	pod.Spec.HostNetwork = true
	got = string(HostsFile(pod, "", "", []string{"10.0.0.5"}, []byte("1.1.1.1 node")))
	if !strings.Contains(got, "1.1.1.1 node\n\n#") || strings.Contains(got, "10.0.0.5") || !strings.Contains(got, "a.local") {
		t.Errorf("for the host's network:\n%s", got)
	}
}

func BenchmarkLife(b *testing.B) {
	m := New(Config{Root: b.TempDir()})
	pod := podWith(emptyDir("a", "", ""), hostPath("h", b.TempDir(), ""))
	for i := 0; b.Loop(); i++ {
		pod.UID = types.UID(fmt.Sprint("uid-", i))
		if _, err := m.Setup(b.Context(), pod, Content{}); err != nil {
			b.Fatal(err)
		}
		if err := m.Teardown(b.Context(), pod.UID); err != nil {
			b.Fatal(err)
		}
	}
}
