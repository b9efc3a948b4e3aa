package layer

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: owners and devices of image files")
	}
}

// describe lists all that is to be known of a tree: one line a file.
func describe(t testing.TB, root string, times bool) map[string]string {
	t.Helper()
	links := map[uint64]string{}
	all := map[string]string{}
	err := filepath.WalkDir(root, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, p)
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		s := fmt.Sprintf("%o %d:%d", st.Mode, st.Uid, st.Gid)
		if times {
			s += fmt.Sprintf(" %d.%d", st.Mtim.Sec, st.Mtim.Nsec)
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			sum := sha256.Sum256(b)
			s += fmt.Sprintf(" %d %s", st.Size, hex.EncodeToString(sum[:8]))
			if st.Nlink > 1 {
				if first, ok := links[st.Ino]; ok {
					s += " =" + first
				} else {
					links[st.Ino] = name
				}
			}
		case unix.S_IFLNK:
			to, err := os.Readlink(p)
			if err != nil {
				return err
			}
			s += " -> " + to
		case unix.S_IFCHR, unix.S_IFBLK:
			s += fmt.Sprintf(" %d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
		}
		all[name] = s + xattrsOf(t, p)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func xattrsOf(t testing.TB, p string) string {
	t.Helper()
	buf := make([]byte, 4096)
	n, err := unix.Llistxattr(p, buf)
	if err != nil || n == 0 {
		return ""
	}
	names := strings.Split(strings.TrimRight(string(buf[:n]), "\x00"), "\x00")
	sort.Strings(names)
	s := ""
	for _, name := range names {
		v := make([]byte, 4096)
		n, err := unix.Lgetxattr(p, name, v)
		if err != nil {
			t.Fatal(err)
		}
		s += fmt.Sprintf(" %s=%x", name, v[:n])
	}
	return s
}

// same fails with the lines in which two trees differ.
func same(t testing.TB, want, got map[string]string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if want[name] != got[name] {
			t.Errorf("%q:\nwant %s\ngot  %s", name, want[name], got[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[name]; !ok {
			t.Errorf("%q should not be there: %s", name, got[name])
		}
	}
}
