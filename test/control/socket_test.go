package control

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSocketRemoved removes etcd's socket below a control plane: commands work, and it tells of it.
func TestSocketRemoved(t *testing.T) {
	t.Parallel()
	p := start(t, t.TempDir())
	p.write(t, "before")
	if err := os.Remove(filepath.Join(p.dir, "run", "etcd.sock")); err != nil {
		t.Fatal(err)
	}
	until(t, "a command reaches etcd", func() error {
		_, err := control(t, p.dir, "etcd", "members")
		return err
	})
	p.run(t, "etcd", "status")
	p.has(t, "before")
	if !strings.Contains(p.output.String(), "socket was removed by somebody and is made again") {
		t.Error("it does not tell of it")
	}
	p.stop(t)
	if left, err := filepath.Glob(filepath.Join(p.dir, "run", "*")); err != nil || len(left) > 0 {
		t.Errorf("there is left %q, %v", left, err)
	}
}
