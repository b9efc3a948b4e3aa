package checkpoint

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

func newDir(t *testing.T) Dir {
	t.Helper()
	d, err := NewDir(t.TempDir(), "x")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestDumpFails: the error is the first that criu has logged, not the last, which says only that it failed.
func TestDumpFails(t *testing.T) {
	d := newDir(t)
	path := filepath.Join(t.TempDir(), "criu")
	script := "#!/bin/sh\nprintf '(00.1) hello\\n(00.2) Error (criu/tty.c:1): tty is weird\\n(00.3) Error (criu/cr-dump.c:2): Dumping FAILED.\\n' > " + d.Path(LogFile) + "\nexit 1\n"
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	err := CRIU{path: path}.Dump(t.Context(), Container{Pid: os.Getpid(), Rootfs: "/", Spec: &specs.Spec{Linux: &specs.Linux{}}}, d)
	if want := "criu dump: exit status 1: Error (criu/tty.c:1): tty is weird"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestPack: an archive appears as a whole, or there is nothing.
func TestPack(t *testing.T) {
	d := newDir(t)
	if err := errors.Join(d.PutJSON(DeletedFile, []string{"/a"}), os.WriteFile(filepath.Join(d.Images(), "core-1.img"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	location := filepath.Join(t.TempDir(), "c.tar")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Pack(ended, location); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if left, _ := os.ReadDir(filepath.Dir(location)); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if err := d.Pack(t.Context(), location); err != nil {
		if strings.Contains(err.Error(), "without a name") {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	if err := d.Pack(t.Context(), location); !errors.Is(err, fs.ErrExist) {
		t.Errorf("over another: got %v", err)
	}
	f, err := os.Open(location)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var names []string
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
	if want := []string{"checkpoint/", "checkpoint/core-1.img", "deleted.files"}; !slices.Equal(names, want) {
		t.Errorf("got %q, want %q", names, want)
	}
}
