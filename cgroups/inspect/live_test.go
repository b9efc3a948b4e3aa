package inspect

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/berth-node/berth/cgroups"
)

// A group that is removed while it is read is left out: a file that was not there any more is no value that differs.
func TestGroupThatGoesIsLeftOut(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes control groups")
	}
	h, err := cgroups.Open("")
	if err != nil {
		t.Skipf("needs a cgroup hierarchy: %v", err)
	}
	path := fmt.Sprintf("/berth-test-goes-%d", os.Getpid())
	t.Cleanup(func() {
		if err := h.Remove(context.Background(), path); err != nil {
			t.Error(err)
		}
	})
	if err := h.Create(path, nil); err != nil {
		t.Fatal(err)
	}
	whole, ok := readGroup(h, path)
	if !ok {
		t.Fatal("a group that is there is not read")
	}
	for range 100 {
		gone := make(chan error, 1)
		go func() { gone <- h.Remove(context.Background(), path) }()
		for there := true; there; {
			var g Group
			g, there = readGroup(h, path)
			if there && len(g.Missing) == 0 && len(g.Files) != len(whole.Files) {
				t.Errorf("a group that was going has %d files instead of %d", len(g.Files), len(whole.Files))
			}
			there = there || h.Exists(path)
		}
		if err := <-gone; err != nil {
			t.Fatal(err)
		}
		if err := h.Create(path, nil); err != nil {
			t.Fatal(err)
		}
	}
}
