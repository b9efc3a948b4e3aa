package nri

import (
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// TestClear removes what a killed runtime has left of its socket, and nothing of another's.
func TestClear(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		leave func(t *testing.T, path string)
		stays []string
	}{
		"nothing": {leave: func(*testing.T, string) {}},
		"both names": {leave: func(t *testing.T, path string) {
			t.Helper()
			dead(t, Own(path))
			must(t, os.Link(Own(path), path))
		}},
		"own name alone": {leave: func(t *testing.T, path string) {
			t.Helper()
			dead(t, Own(path))
		}},
		"another's that is dead": {
			leave: func(t *testing.T, path string) {
				t.Helper()
				dead(t, Own(path))
				dead(t, path)
			},
			stays: []string{"nri.sock"},
		},
		"one that is served": {
			leave: func(t *testing.T, path string) {
				t.Helper()
				l, err := net.Listen("unix", Own(path))
				must(t, err)
				t.Cleanup(func() { l.Close() })
				must(t, os.Link(Own(path), path))
			},
			stays: []string{".nri.sock", "nri.sock"},
		},
		"something beside it": {
			leave: func(t *testing.T, path string) {
				t.Helper()
				dead(t, Own(path))
				must(t, os.WriteFile(filepath.Join(filepath.Dir(path), "else"), nil, 0o600))
			},
			stays: []string{"else"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "nri")
			must(t, os.Mkdir(dir, 0o755))
			path := filepath.Join(dir, "nri.sock")
			c.leave(t, path)
			for range 2 {
				must(t, Clear(path))
			}
			left, err := os.ReadDir(dir)
			if len(c.stays) == 0 {
				if !errors.Is(err, fs.ErrNotExist) {
					t.Fatalf("the directory is there, with %v (%v)", left, err)
				}
				return
			}
			must(t, err)
			if len(left) != len(c.stays) {
				t.Fatalf("%v are left, not %v", left, c.stays)
			}
			for i, d := range left {
				if d.Name() != c.stays[i] {
					t.Errorf("%s is left, not %s", d.Name(), c.stays[i])
				}
			}
		})
	}
}

// dead makes a socket that nobody serves.
func dead(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	l.SetUnlinkOnClose(false)
	must(t, l.Close())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestModeOfName has nobody but root connect, whatever the umask left.
func TestModeOfName(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "nri.sock")
	l, err := net.Listen("unix", Own(path))
	must(t, err)
	defer l.Close()
	must(t, os.Chmod(Own(path), 0o755))
	n := newName(path)
	must(t, n.keep(slog.New(slog.DiscardHandler)))
	for _, p := range []string{path, Own(path)} {
		info, err := os.Stat(p)
		must(t, err)
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %o", filepath.Base(p), info.Mode().Perm())
		}
	}
	must(t, n.end())
}
