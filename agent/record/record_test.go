package record_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/agent/record"
)

func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	wrong := errors.New("it cannot be")
	load := func() (string, error, error) {
		got, bad, err := record.Load(path, 2, func(data []byte) (*string, error) {
			if text := string(data); !strings.Contains(text, "wrong") {
				return &text, nil
			}
			return nil, wrong
		})
		if got == nil {
			return "", bad, err
		}
		return *got, bad, err
	}
	if got, bad, err := load(); got != "" || bad != nil || err != nil {
		t.Errorf("without a file: %q, %v, %v", got, bad, err)
	}
	for _, put := range []func(string, any) error{record.Write, record.Keep} {
		for _, version := range []int{1, 2} {
			if err := put(path, map[string]int{"version": version}); err != nil {
				t.Fatal(err)
			}
		}
		if got, bad, err := load(); got != `{"version":2}` || bad != nil || err != nil {
			t.Errorf("got %q, %v, %v", got, bad, err)
		}
	}
	for _, text := range []string{`{"version":1,"wrong":0}`, `{}`, `{"version":1`, ``} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, bad, err := load(); got != "" || bad == nil || err != nil || strings.Contains(text, "wrong") != errors.Is(bad, wrong) {
			t.Errorf("%s: %q, %v, %v", text, got, bad, err)
		}
		if b, err := os.ReadFile(path + ".bad"); err != nil || string(b) != text {
			t.Errorf("aside is %q, %v", b, err)
		}
		if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
			t.Errorf("left: %v, %v", entries, err)
		}
	}
	// Of a later version it is not for us to say what is wrong.
	if err := os.WriteFile(path, []byte(`{"version":3,"wrong":0}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, bad, err := load(); got != "" || bad != nil || err == nil || !strings.Contains(err.Error(), "later version") {
		t.Errorf("of a later version: %q, %v, %v", got, bad, err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

// TestLoadUnreadable has files that are none, and disks that nothing can be put aside on: they end no start.
func TestLoadUnreadable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	load := func() (*int, error, error) {
		return record.Load(path, 1, func([]byte) (*int, error) { return nil, errors.New("it cannot be") })
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if got, bad, err := load(); got != nil || bad == nil || err != nil {
		t.Errorf("a directory: %v, %v, %v", got, bad, err)
	}
	if _, err := os.Stat(path + record.Aside); err != nil {
		t.Error(err)
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts a tmpfs")
	}
	disk := t.TempDir()
	if err := unix.Mount("t", disk, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(disk, unix.MNT_DETACH) }()
	path = filepath.Join(disk, "file")
	if err := os.WriteFile(path, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", disk, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if got, bad, err := load(); got != nil || bad == nil || err != nil || !strings.Contains(bad.Error(), "it stays") {
		t.Errorf("on a disk that is read-only: %v, %v, %v", got, bad, err)
	}
}

// TestNoFile has a named pipe in the place of a record, whose reader would wait for who writes to it.
func TestNoFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "record.json")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	var v struct{}
	if record.Read(path, &v) {
		t.Error("a pipe is read")
	}
	got, bad, err := record.Load(path, 1, func([]byte) (*struct{}, error) { return &v, nil })
	if got != nil || bad == nil || err != nil {
		t.Errorf("a pipe is loaded as %v, %v, %v; want it put aside", got, bad, err)
	}
	if _, err := os.Lstat(path + record.Aside); err != nil {
		t.Error(err)
	}
}
