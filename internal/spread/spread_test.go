package spread

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestApart makes directories in one of which that is wished: they are in several groups of inodes then, where they
// were in few. On other file systems nothing is set.
func TestApart(t *testing.T) {
	root := t.TempDir()
	d, err := os.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	before := groups(t, filepath.Join(root, "together"), func(string) {})
	after := groups(t, filepath.Join(root, "apart"), Apart)
	if !looks(int(d.Fd())) {
		t.Skip("the file system has a journal, or is another one")
	}
	if after <= before {
		t.Errorf("the directories are in %d groups, and were in %d", after, before)
	}
	Apart(filepath.Join(root, "none"))
}

// groups are how many groups of inodes directories are in.
func groups(t *testing.T, dir string, how func(string)) int {
	t.Helper()
	const inGroup = 1 << 12 // or more, in all file systems but tiny ones
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	how(dir)
	seen := map[uint64]bool{}
	for i := range 32 {
		path := filepath.Join(dir, fmt.Sprint(i))
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		seen[st.Ino/inGroup] = true
	}
	return len(seen)
}

// TestOthersAreLeft: a file system of the kernel's own has no groups.
func TestOthersAreLeft(t *testing.T) {
	const dir = "/proc/self"
	Apart(dir)
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if looks(fd) {
		t.Error("it is taken for ext4 without a journal")
	}
	Apart("/nothing/there")
}
