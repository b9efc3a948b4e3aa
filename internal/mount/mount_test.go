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
func TestMountsIn(t *testing.T) {
	needRoot(t)
	root := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(root, "a/b"), 0o755))
	file := filepath.Join(root, "a/b/file")
	must(t, os.WriteFile(file, nil, 0o600))
	must(t, os.Symlink("/", filepath.Join(root, "a/link")))
	must(t, unix.Mkfifo(filepath.Join(root, "a/pipe"), 0o600))
	if found, seen := mountsIn(root); !seen || len(found) > 0 {
		t.Errorf("on nothing but directories, a file, a link and a pipe: %q, %t", found, seen)
	}
	for _, at := range []string{root, filepath.Join(root, "a/b"), file} {
		for range 3 { // on top of each other
			must(t, unix.Mount(at, at, "", unix.MS_BIND, "")) // of the same file system
		}
		if found, seen := mountsIn(root); !seen || !slices.Equal(found, []string{at}) {
			t.Errorf("mounted on %s: %q, %t", at, found, seen)
		}
		must(t, UnmountUnder(root))
		if left, err := Under(root); err != nil || len(left) > 0 {
			t.Errorf("left on %s: %q, %v", at, left, err)
		}
	}
	for i := range fewEntries {
		must(t, os.WriteFile(filepath.Join(root, strconv.Itoa(i)), nil, 0o600))
	}
	if found, seen := mountsIn(root); seen {
		t.Errorf("not all of it was looked at, and it has %q", found)
	}
	if found, seen := mountsIn(filepath.Join(root, "absent")); !seen || len(found) > 0 {
		t.Errorf("where nothing is there is %q, %v", found, seen)
	}
}

// What is mounted in a mount that is shared goes from there alone, and stays with the peers.
func TestUnmountUnderPeers(t *testing.T) {
	needRoot(t)
	root := t.TempDir()
	host, pod := filepath.Join(root, "host"), filepath.Join(root, "pod/volume")
	must(t, os.Mkdir(host, 0o755))
	must(t, os.MkdirAll(pod, 0o755))
	must(t, unix.Mount("t", host, "tmpfs", 0, ""))
	t.Cleanup(func() { must(t, UnmountUnder(root)) })
	must(t, unix.Mount("", host, "", unix.MS_SHARED, ""))
	below := filepath.Join(host, "below")
	must(t, os.Mkdir(below, 0o755))
	must(t, unix.Mount("t", below, "tmpfs", 0, ""))
	must(t, unix.Mount(host, pod, "", unix.MS_BIND|unix.MS_REC, ""))
	must(t, UnmountUnder(filepath.Dir(pod)))
	got, err := Under(root)
	slices.Sort(got)
	if want := []string{host, below}; err != nil || !slices.Equal(got, want) {
		t.Errorf("left: %q, %v; want %q", got, err, want)
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
