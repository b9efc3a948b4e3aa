package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/volume/kind"
	"github.com/berth-node/berth/internal/mount/mounttest"
)

func TestBind(t *testing.T) {
	root := t.TempDir()
	m := New(Config{Root: root})
	for n := range 20 {
		must(t, os.MkdirAll(filepath.Join(root, "pods", fmt.Sprint(n)), 0o750))
	}
	// Each gets a volume of its own, however many ask at a time.
	choose := func(taken Taken) (string, error) {
		for n := range 40 {
			if name := fmt.Sprint("pv", n); !taken.Names[name] {
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
	if len(taken.Names) != 40 {
		t.Errorf("taken: %v", slices.Sorted(maps.Keys(taken.Names)))
	}
	if _, err := m.Bind("0", "v2", choose); err == nil {
		t.Error("a volume was given twice")
	}
	// What a pod has it keeps, under the next agent too, until it goes.
	first, err := m.Bind("0", "v0", choose)
	must(t, err)
	m = New(Config{Root: root})
	again, err := m.Bind("0", "v0", func(Taken) (string, error) { return "", errors.New("asked again") })
	if err != nil || again != first {
		t.Errorf("got %q, %v, had %q", again, err, first)
	}
	must(t, m.Teardown(t.Context(), "0"))
	if got, err := m.Bind("1", "v2", choose); err != nil || got == "" {
		t.Errorf("what a pod had is not free when it has gone: %v", err)
	}
}

// Whatever becomes of what one pod has recorded, it keeps what it has, nobody else gets it, and the others get theirs.
func TestBindBesideDamagedRecords(t *testing.T) {
	for _, text := range []string{"", "{", "\xff\xfe", `{"data":`, `[]`} {
		root := t.TempDir()
		m := New(Config{Root: root})
		for _, uid := range []string{"damaged", "other"} {
			must(t, os.MkdirAll(filepath.Join(root, "pods", uid), 0o750))
		}
		choose := func(taken Taken) (string, error) {
			if len(taken.Unknown) > 0 {
				t.Errorf("%q: nobody knows what %v have", text, taken.Unknown)
			}
			for n := range 40 {
				if name := fmt.Sprint("pv", n); !taken.Names[name] {
					return name, nil
				}
			}
			return "", errors.New("none is left")
		}
		has, err := m.Bind("damaged", "v", choose)
		must(t, err)
		files := 0
		must(t, filepath.WalkDir(filepath.Join(root, "pods/damaged"), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			files++
			return os.WriteFile(path, []byte(text), 0o600)
		}))
		if files == 0 {
			t.Fatal("nothing was recorded")
		}
		m = New(Config{Root: root})
		if got, err := m.Bind("other", "v", choose); err != nil || got == has {
			t.Errorf("%q: another pod got %q, %v; the first has %q", text, got, err, has)
		}
		if got, err := m.Bind("damaged", "v", choose); err != nil || got != has {
			t.Errorf("%q: got %q, %v; had %q", text, got, err, has)
		}
		must(t, m.Teardown(t.Context(), "damaged"))
		if got, err := m.Bind("other", "w", choose); err != nil || got != has {
			t.Errorf("%q: got %q, %v; %q is free", text, got, err, has)
		}
	}
}

// The record of an earlier version is read as long as its pod is there. One that is damaged makes the pod one of which
// nobody knows what it has: it waits, and the others do not.
func TestBindBesideEarlierRecords(t *testing.T) {
	root := t.TempDir()
	m := New(Config{Root: root})
	earlier := filepath.Join(root, "pods/earlier", claimsFile)
	mounttest.Write(t, earlier, `{"v":"pv0","w":"pv1"}`)
	must(t, os.MkdirAll(filepath.Join(root, "pods/other"), 0o750))
	var told Taken
	choose := func(name string) func(Taken) (string, error) {
		return func(taken Taken) (string, error) {
			told = taken
			return name, nil
		}
	}
	for volume, want := range map[string]string{"v": "pv0", "w": "pv1", "new": "pv2"} {
		if got, err := m.Bind("earlier", volume, choose("pv2")); err != nil || got != want {
			t.Errorf("%s has %q, %v; want %q", volume, got, err, want)
		}
	}
	if got, err := m.Bind("other", "v", choose("pv3")); err != nil || got != "pv3" || len(told.Names) != 3 || len(told.Unknown) > 0 {
		t.Errorf("got %q, %v; was told %v", got, err, told)
	}
	mounttest.Write(t, earlier, `{"v":"pv`)
	if got, err := m.Bind("earlier", "v", choose("pv4")); !errors.Is(err, kind.ErrDamaged) || !strings.Contains(err.Error(), earlier) {
		t.Errorf("got %q, %v", got, err)
	}
	// What it has recorded since it still has.
	if got, err := m.Bind("earlier", "new", choose("pv4")); err != nil || got != "pv2" {
		t.Errorf("got %q, %v", got, err)
	}
	if got, err := m.Bind("other", "w", choose("pv4")); err != nil || got != "pv4" || !slices.Equal(told.Unknown, []types.UID{"earlier"}) || !told.Names["pv2"] {
		t.Errorf("got %q, %v; was told %v", got, err, told)
	}
	must(t, m.Teardown(t.Context(), "earlier"))
	if _, err := m.Bind("other", "x", choose("pv5")); err != nil || len(told.Unknown) > 0 {
		t.Errorf("after its end: %v, %v", told, err)
	}
}

// What would lead elsewhere is no name.
func TestBindHostileNames(t *testing.T) {
	root := t.TempDir()
	m := New(Config{Root: root})
	must(t, os.MkdirAll(filepath.Join(root, "pods/p"), 0o750))
	for _, b := range []binding{{"../v", "pv"}, {"", "pv"}, {"v", "../../pv"}, {"v", ".."}, {"v", ""}} {
		if got, err := m.Bind("p", b.volume, func(Taken) (string, error) { return b.name, nil }); err == nil {
			t.Errorf("%+v: got %q", b, got)
		}
	}
}
