package mount

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts file systems")
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Whatever is mounted in a pod's directory is seen, on whatever and however deep, without a look at all mounts of the
// node.
func TestUnmounted(t *testing.T) {
	needRoot(t)
	root := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(root, "a/b"), 0o755))
	file := filepath.Join(root, "a/b/file")
	must(t, os.WriteFile(file, nil, 0o600))
	must(t, os.Symlink("/", filepath.Join(root, "a/link")))
	must(t, unix.Mkfifo(filepath.Join(root, "a/pipe"), 0o600))
	if !unmounted(root) {
		t.Error("something is mounted on nothing but directories, a file, a link and a pipe")
	}
	for _, at := range []string{root, filepath.Join(root, "a/b"), file} {
		must(t, unix.Mount(at, at, "", unix.MS_BIND, "")) // of the same file system
		if unmounted(root) {
			t.Errorf("what is mounted on %s is not seen", at)
		}
		must(t, UnmountUnder(root))
		if left, err := Under(root); err != nil || len(left) > 0 {
			t.Errorf("left on %s: %q, %v", at, left, err)
		}
	}
	for i := range fewEntries {
		must(t, os.WriteFile(filepath.Join(root, strconv.Itoa(i)), nil, 0o600))
	}
	if unmounted(root) {
		t.Error("what was not looked at is said to be without mounts")
	}
	if !unmounted(filepath.Join(root, "absent")) {
		t.Error("something is mounted where nothing is")
	}
}

// Under finds mounts whatever their paths are, and none of a neighbour.
func TestUnder(t *testing.T) {
	needRoot(t)
	root := t.TempDir()
	var want []string
	for _, name := range []string{"plain", "a b", "tab\there", "line\nfeed", `back\slash`, `\040`, "é", "#", "-"} {
		at := filepath.Join(root, "dir", name)
		must(t, os.MkdirAll(at, 0o755))
		must(t, unix.Mount("t", at, "tmpfs", 0, ""))
		want = append(want, at)
	}
	beside := filepath.Join(root, "dir-beside")
	must(t, os.Mkdir(beside, 0o755))
	must(t, unix.Mount("t", beside, "tmpfs", 0, ""))
	t.Cleanup(func() { must(t, UnmountUnder(root)) })
	got, err := Under(filepath.Join(root, "dir"))
	slices.Sort(got)
	slices.Sort(want)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	must(t, UnmountUnder(filepath.Join(root, "dir")))
	if got, err := Under(root); err != nil || !slices.Equal(got, []string{beside}) {
		t.Errorf("left: %q, %v", got, err)
	}
}
