package kernfs

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestList: directories are named and nothing else is, also where the kernel answers in pieces.
func TestList(t *testing.T) {
	dir, want := t.TempDir(), []string{"..."}
	for i := range 500 {
		want = append(want, fmt.Sprintf("%d-%s", i, strings.Repeat("x", 100)))
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range want {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(dir, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	var r Reader
	d, names := r.List(dir)
	defer d.Close()
	slices.Sort(names)
	slices.Sort(want)
	if !slices.Equal(names, want) {
		t.Errorf("%d names, want %d", len(names), len(want))
	}
	if _, below, ok := d.Stat("..."); !ok || below != 0 {
		t.Errorf("%d, %v", below, ok)
	}
	if d, names := r.List(dir + "/none"); d.Open() || names != nil {
		t.Errorf("of nothing: %v, %q", d, names)
	}
}

// FuzzDirectories: no bytes end the process or have it read forever.
func FuzzDirectories(f *testing.F) {
	entry := binary.NativeEndian.AppendUint16(make([]byte, 16), 24)
	entry = append(append(entry, unix.DT_DIR), "a\x00\x00\x00\x00"...)
	f.Add(entry)
	f.Add(entry[:20])
	f.Add(append(slices.Clone(entry), make([]byte, 40)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, name := range directories(data, nil) {
			if name == "." || name == ".." || strings.Contains(name, "\x00") {
				t.Errorf("named %q", name)
			}
		}
	})
}
