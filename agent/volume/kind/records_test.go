package kind

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"testing"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func pod(t *testing.T, root Root, uid string) string {
	t.Helper()
	must(t, os.MkdirAll(filepath.Join(string(root), "pods", uid), 0o750))
	dir, err := root.Dir("a")
	must(t, err)
	return filepath.Join(filepath.Dir(dir), uid)
}

func TestRecords(t *testing.T) {
	root := Root(t.TempDir())
	r := Records[string]{Root: root, File: "disks.json", What: "disks"}
	a, b := pod(t, root, "a"), pod(t, root, "b")
	if got, err := r.Of(a); len(got) > 0 || err != nil {
		t.Errorf("before: %v, %v", got, err)
	}
	must(t, r.Keep(a, "v", "one"))
	must(t, r.Keep(a, "w", "two"))
	must(t, r.Keep(b, "v", "two"))
	if got, err := r.Of(a); err != nil || !maps.Equal(got, map[string]string{"v": "one", "w": "two"}) {
		t.Errorf("got %v, %v", got, err)
	}
	others := func(disk string, want bool) {
		t.Helper()
		if got, err := r.Others(a, "w", func(d string) bool { return d == disk }); err != nil || got != want {
			t.Errorf("%s: %t, %v", disk, got, err)
		}
	}
	others("one", true) // another volume of the pod
	others("two", true) // another pod's
	must(t, r.Forget(b, "v"))
	must(t, r.Forget(b, "v"))
	others("two", false) // its own alone
}

// What a damaged record may say is taken for said: no other pod's disk is taken for unshared because of it.
func TestRecordsDamaged(t *testing.T) {
	for _, text := range []string{"", "{", "\xff\xfe", `{"data":`, `[]`} {
		root := Root(t.TempDir())
		r := Records[string]{Root: root, File: "disks.json", What: "disks"}
		dir := pod(t, root, "a")
		must(t, os.WriteFile(filepath.Join(dir, r.File), []byte(text), 0o600))
		if _, err := r.Of(dir); !errors.Is(err, ErrDamaged) {
			t.Errorf("%q: %v", text, err)
		}
		shared, err := r.Others(pod(t, root, "other"), "v", func(string) bool { return false })
		if err != nil || !shared {
			t.Errorf("%q: shared is %t, %v", text, shared, err)
		}
	}
}
