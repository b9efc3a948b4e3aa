package filter

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestPath(t *testing.T) {
	one, err := Path("/state", &specs.LinuxSeccomp{DefaultAction: specs.ActAllow})
	if err != nil || filepath.Dir(one) != "/state/.seccomp" {
		t.Errorf("path is %s, %v", one, err)
	}
	other, err := Path("/state", &specs.LinuxSeccomp{DefaultAction: specs.ActErrno})
	if err != nil || one == other {
		t.Errorf("another profile has the path %s, %v", other, err)
	}
}

// TestKeep leaves the filter of a container in the place of one that was there.
func TestKeep(t *testing.T) {
	dir := t.TempDir()
	bundle, compiled := filepath.Join(dir, "bundle"), filepath.Join(dir, "compiled")
	if err := os.Mkdir(bundle, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"first", "second"} {
		if err := os.RemoveAll(compiled); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(compiled, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Keep(bundle, compiled, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(filepath.Join(bundle, "seccomp.bpf")); err != nil || string(b) != text {
			t.Errorf("the bundle has %q, %v", b, err)
		}
	}
}
