package volume

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
)

func TestBind(t *testing.T) {
	root := t.TempDir()
	m := New(Config{Root: root})
	for n := range 20 {
		must(t, os.MkdirAll(filepath.Join(root, "pods", fmt.Sprint(n)), 0o750))
	}
	// Each gets a volume of its own, however many ask at a time.
	choose := func(taken map[string]bool) (string, error) {
		for n := range 40 {
			if name := fmt.Sprint("pv", n); !taken[name] {
				return name, nil
			}
		}
		return "", errors.New("none is left")
	}
	var g errgroup.Group
	for n := range 40 {
		g.Go(func() error {
			_, err := m.Bind(types.UID(fmt.Sprint(n/2)), fmt.Sprint("v", n%2), choose)
			return err
		})
	}
	must(t, g.Wait())
	taken, err := m.taken()
	must(t, err)
	if len(taken) != 40 {
		t.Errorf("taken: %v", slices.Sorted(maps.Keys(taken)))
	}
	if _, err := m.Bind("0", "v2", choose); err == nil {
		t.Error("a volume was given twice")
	}
	// What a pod has it keeps, under the next agent too, until it goes.
	first, err := m.Bind("0", "v0", choose)
	must(t, err)
	m = New(Config{Root: root})
	again, err := m.Bind("0", "v0", func(map[string]bool) (string, error) { return "", errors.New("asked again") })
	if err != nil || again != first {
		t.Errorf("got %q, %v, had %q", again, err, first)
	}
	must(t, m.Teardown(t.Context(), "0"))
	if got, err := m.Bind("1", "v2", choose); err != nil || got == "" {
		t.Errorf("what a pod had is not free when it has gone: %v", err)
	}
}
