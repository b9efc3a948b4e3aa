package volume

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/volume/kind"
	"github.com/berth-node/berth/internal/mount"
)

func configMap(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}}
}

func secret(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}}
}

func content(volume string, files ...kind.File) Content {
	return Content{Files: map[string][]kind.File{volume: files}}
}

func text(path, data string) kind.File { return kind.File{Path: path, Data: []byte(data), Mode: 0o644} }

// tree lists what is in a volume, files with their content and links with where they lead, directories of content as
// "..".
func tree(t *testing.T, dir string) string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		first, rest, _ := strings.Cut(rel, "/")
		if strings.HasPrefix(first, "..2") {
			rel = filepath.Join("..", rest)
		}
		switch {
		case d.Type()&fs.ModeSymlink != 0:
			to, _ := os.Readlink(path)
			if strings.HasPrefix(to, "..2") {
				to = ".."
			}
			out = append(out, rel+">"+to)
		case d.IsDir():
			out = append(out, rel+"/")
		default:
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			out = append(out, rel+"="+string(b))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(out, " ")
}

func TestFilesAreSwappedInOneStep(t *testing.T) {
	m := manager(t)
	pod := podWith(configMap("c"))
	set := func(files ...kind.File) string {
		paths, err := m.Setup(t.Context(), pod, content("c", files...))
		if err != nil {
			t.Fatal(err)
		}
		return paths["c"]
	}
	dir := set(text("a", "1"), text("sub/deep/b", "2"))
	if got, want := tree(t, dir), "../ ../a=1 ../sub/ ../sub/deep/ ../sub/deep/b=2 ..data>.. a>..data/a sub>..data/sub"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	before, err := os.Readlink(filepath.Join(dir, dataLink))
	if err != nil {
		t.Fatal(err)
	}
	// What is the same is not written again.
	set(text("a", "1"), text("sub/deep/b", "2"))
	if now, _ := os.Readlink(filepath.Join(dir, dataLink)); now != before {
		t.Errorf("written again: %s, was %s", now, before)
	}
	// What a crash may have left goes.
	for _, name := range []string{"..2020_01_01", "stale"} {
		if err := os.MkdirAll(filepath.Join(dir, name, "x"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, dataLinkNew)); err != nil {
		t.Fatal(err)
	}
	set(text("a", "3"), text("new", "4"))
	if got, want := tree(t, dir), "../ ../a=3 ../new=4 ..data>.. a>..data/a new>..data/new"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	// A file may become a directory.
	set(text("a/b", "5"))
	if got, want := tree(t, dir), "../ ../a/ ../a/b=5 ..data>.. a>..data/a"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	set()
	if got, want := tree(t, dir), "../ ..data>.."; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	for _, bad := range []string{"../x", "/x", "a/../../x", "..data", "..x", "", ".", "a//b"} {
		if _, err := m.Setup(t.Context(), pod, content("c", text(bad, ""))); err == nil {
			t.Errorf("%q was written", bad)
		}
	}
	if err := m.Teardown(t.Context(), pod.UID); err != nil {
		t.Fatal(err)
	}
}

func TestSecretsAreInMemory(t *testing.T) {
	needRoot(t)
	m := manager(t)
	pod := podWith(secret("s"))
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(1234))}
	var dir string
	for range 2 { // once again changes nothing
		paths, err := m.Setup(t.Context(), pod, content("s", kind.File{Path: "key", Data: []byte("x"), Mode: 0o400}))
		if err != nil {
			t.Fatal(err)
		}
		dir = paths["s"]
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Type != unix.TMPFS_MAGIC {
		t.Errorf("type %x, %v", st.Type, err)
	}
	if mounts, err := mount.Under(dir); err != nil || len(mounts) != 1 {
		t.Errorf("mounts %q, %v", mounts, err)
	}
	info, err := os.Stat(filepath.Join(dir, "key"))
	if err != nil {
		t.Fatal(err)
	}
	if sys, ok := info.Sys().(*syscall.Stat_t); !ok || sys.Gid != 1234 || info.Mode() != 0o440 {
		t.Errorf("group and mode %v", info.Mode())
	}
	if err := m.Teardown(t.Context(), pod.UID); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(dir); !os.IsNotExist(err) {
		t.Errorf("left: %v", err)
	}
}

func TestGroupOfALocalVolume(t *testing.T) {
	needRoot(t)
	m := manager(t)
	disk := t.TempDir()
	elsewhere := t.TempDir()
	for _, dir := range []string{"a/b/c", "mounted"} {
		if err := os.MkdirAll(filepath.Join(disk, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{filepath.Join(disk, "a/b/c/f"), filepath.Join(elsewhere, "theirs")} {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(elsewhere, "theirs"), filepath.Join(disk, "link")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(elsewhere, filepath.Join(disk, "mounted"), "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(filepath.Join(disk, "mounted"), 0)

	pod := podWith(corev1.Volume{Name: "p", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "q"}}})
	policy := corev1.FSGroupChangeOnRootMismatch
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(4321)), FSGroupChangePolicy: &policy}
	pv := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: disk}}}}
	set := func() {
		paths, err := m.Setup(t.Context(), pod, Content{Persistent: map[string]*corev1.PersistentVolume{"p": pv}})
		if err != nil || paths["p"] != disk {
			t.Fatal(paths, err)
		}
	}
	group := func(path string) (uint32, fs.FileMode) {
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		sys, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			t.Fatal("no stat")
		}
		return sys.Gid, info.Mode()
	}
	set()
	for path, want := range map[string]fs.FileMode{"": 0o770, "a": 0o770, "a/b/c": 0o770, "a/b/c/f": 0o660} {
		gid, mode := group(filepath.Join(disk, path))
		if gid != 4321 || mode.Perm()&0o770 != want || mode.IsDir() && mode&fs.ModeSetgid == 0 {
			t.Errorf("%q has group %d and mode %v", path, gid, mode)
		}
	}
	if gid, mode := group(filepath.Join(elsewhere, "theirs")); gid == 4321 || mode.Perm() != 0o600 {
		t.Errorf("what is elsewhere has group %d and mode %v", gid, mode)
	}
	// The root says that it was done.
	if err := os.Chown(filepath.Join(disk, "a/b/c/f"), 0, 0); err != nil {
		t.Fatal(err)
	}
	set()
	if gid, _ := group(filepath.Join(disk, "a/b/c/f")); gid != 0 {
		t.Error("changed though the root has the group")
	}
	policy = corev1.FSGroupChangeAlways
	set()
	if gid, _ := group(filepath.Join(disk, "a/b/c/f")); gid != 4321 {
		t.Error("not changed though it is to be changed always")
	}
	if err := m.Teardown(t.Context(), pod.UID); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(disk, "a/b/c/f")); err != nil {
		t.Error(err)
	}
}

func TestNFSNeedsItsProgram(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	pod := podWith(corev1.Volume{Name: "n", VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "192.0.2.1", Path: "/x"}}})
	m := manager(t)
	_, err := m.Setup(t.Context(), pod, Content{})
	if err == nil || !strings.Contains(err.Error(), "nfs-common") {
		t.Errorf("%v", err)
	}
	if err := m.Teardown(t.Context(), pod.UID); err != nil {
		t.Fatal(err)
	}
	if left, _ := m.Pods(); slices.Contains(left, pod.UID) {
		t.Error("left")
	}
}
