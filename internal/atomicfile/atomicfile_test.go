package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRead reads a file, and nothing that is none or has too much.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	file, pipe := filepath.Join(dir, "f"), filepath.Join(dir, "p")
	if err := errors.Join(os.WriteFile(file, []byte("abc"), 0o600), unix.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	if b, err := Read(file, 3); err != nil || string(b) != "abc" {
		t.Errorf("the file has %q, %v", b, err)
	}
	if _, err := Read(filepath.Join(dir, "none"), 3); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	if _, err := Read(file, 2); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a file that has too much: %v", err)
	}
	for _, path := range []string{pipe, dir, "/dev/zero"} {
		if _, err := Read(path, 3); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s, which is no file: %v", path, err)
		}
	}
}

// TestWrite replaces a file that somebody has open, over what a killed writer has left.
func TestWrite(t *testing.T) {
	for name, write := range map[string]func(string, []byte, fs.FileMode) error{"killed": Write, "loss of power": WriteSynced} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "f")
			if err := write(path, []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
			reader, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer reader.Close()
			if err := os.WriteFile(path+Part, []byte("half of something long"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := write(path, []byte("new"), 0o600); err != nil {
				t.Fatal(err)
			}
			b := make([]byte, 10)
			if n, err := reader.Read(b); err != nil || string(b[:n]) != "old" {
				t.Errorf("who has it open reads %q, %v", b[:n], err)
			}
			if b, err := os.ReadFile(path); err != nil || string(b) != "new" {
				t.Errorf("it has %q, %v", b, err)
			}
			if st, err := os.Stat(path); err != nil || st.Mode() != 0o600 {
				t.Errorf("mode is %v, %v", st, err)
			}
			if _, err := os.Stat(path + Part); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("a part is left: %v", err)
			}
			if err := write(filepath.Join(path, "no directory", "f"), nil, 0o600); err == nil {
				t.Error("it is written where there is no directory")
			}
		})
	}
}

// TestFullDisk has no room for the whole: the file stays what it was, and no half of the next takes what room there is.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for a disk of its own")
	}
	dir := t.TempDir()
	if err := unix.Mount("small", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	path := filepath.Join(dir, "f")
	if err := Write(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []byte(strings.Repeat("x", 1<<20)), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("error is %v", err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "old" {
		t.Errorf("it has %q, %v", b, err)
	}
	if _, err := os.Stat(path + Part); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a half is left: %v", err)
	}
}

// TestOver writes over what is longer and what is shorter, and keeps the file that it is.
func TestOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	var first os.FileInfo
	for _, text := range []string{"first", "longer than that", "short", ""} {
		if err := Over(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(path)
		if err != nil || st.Mode() != 0o600 || first != nil && !os.SameFile(first, st) {
			t.Errorf("it is %v, %v", st, err)
		}
		first = st
		if b, err := os.ReadFile(path); err != nil || string(b) != text {
			t.Errorf("it has %q, %v", b, err)
		}
	}
	if err := Over(filepath.Join(path, "f"), nil, 0o600); err == nil {
		t.Error("it is written where there is no directory")
	}
}

// TestMkdirSynced makes what is missing of a path, and takes what is there.
func TestMkdirSynced(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		if err := MkdirSynced(filepath.Join(dir, "a/b/c"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"file", "file/below"} {
		if err := MkdirSynced(filepath.Join(dir, path), 0o700); err == nil {
			t.Errorf("%s was taken for a directory", path)
		}
	}
}
