package host

import (
	"os"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-node/berth/internal/atomicfile"
)

// TestSpecIsWhole: whoever is killed while it writes a specification leaves one that can be read. A reader beside the
// writer sees at each moment what would be left.
func TestSpecIsWhole(t *testing.T) {
	path := t.TempDir() + "/config.json"
	spec := &specs.Spec{Hostname: strings.Repeat("x", 64<<10)}
	if err := WriteSpec(path, spec); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		var err error
		for i := 0; i < 500 && err == nil; i++ {
			err = WriteSpec(path, spec)
		}
		done <- err
	}()
	for {
		if got, err := ReadSpec(path); err != nil || got.Hostname != spec.Hostname {
			t.Fatalf("read %v", err)
		}
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			return
		default:
		}
	}
}

// TestRemoveAfterKill: half a specification that a killed writer has left goes with the container.
func TestRemoveAfterKill(t *testing.T) {
	l := Layout{Run: t.TempDir(), Root: t.TempDir()}
	of := l.Container("c")
	if err := os.MkdirAll(string(of), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(of.Spec()+atomicfile.Part, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := RemoveContainerDir(l, "c"); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(string(of)); !os.IsNotExist(err) {
		t.Errorf("it is there: %v", err)
	}
}
