package node

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func (h *house) recordPath(id string) string {
	return filepath.Join(h.root, "csi", key(driverName, id)+recordSuffix)
}

// TestDamaged: a record that cannot be read is put aside and named, the others go on, and from what is beside the
// volume in the pod's directory it is made again.
func TestDamaged(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "half": `{"version":1,"dri`, "no version": `{"driver":"a","handle":"b","name":"c"}`, "not JSON": "\x00\x01",
		"elsewhere": `{"version":1,"driver":"` + driverName + `","handle":"v","name":"n","stage":"/etc"}`, "other": `{"version":1,"driver":"x","handle":"v","name":"n"}`,
		"large": strings.Repeat(" ", maxRecord+1),
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			h.volume("v")
			h.volume("w")
			h.publish(h.request("a", "v"))
			h.publish(h.request("b", "v"))
			h.publish(h.request("c", "w"))
			must(t, os.WriteFile(h.recordPath("v"), []byte(text), 0o600))
			h.open("")
			if p := h.Problems(); len(p) != 1 || !strings.Contains(p[0], key(driverName, "v")) {
				t.Errorf("problems are %q", p)
			}
			if s := h.List(); len(s) != 2 || len(s[0].Uses) != 2 || s[0].StagePath == "" {
				t.Errorf("there is %+v", s)
			}
			for _, uid := range []string{"a", "b", "c"} {
				must(t, h.Release(t.Context(), h.podDir(uid)))
			}
			bad, err := filepath.Glob(filepath.Join(h.root, "csi", "*"+badSuffix))
			if err != nil || len(bad) != 1 {
				t.Errorf("put aside are %v, %v", bad, err)
			}
			found, err := h.Check(t.Context())
			if err != nil || len(found) != 1 || found[0].What != Damaged {
				t.Errorf("found %v, %v", found, err)
			}
			_ = os.Remove(bad[0])
			h.nothing()
		})
	}
}

// TestLater: a record of a later version stays, and its volume is left alone.
func TestLater(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	h.publish(h.request("a", "v"))
	h.driver.said()
	before, err := os.ReadFile(h.recordPath("v"))
	must(t, err)
	text := []byte(`{"version":2,"driver":"` + driverName + `"}`)
	must(t, os.WriteFile(h.recordPath("v"), text, 0o600))
	h.open("")
	if p := h.Problems(); len(p) != 1 || !strings.Contains(p[0], "later version") {
		t.Errorf("problems are %q", p)
	}
	if _, err := h.Publish(t.Context(), h.request("a", "v")); err == nil || !strings.Contains(err.Error(), "later version") {
		t.Errorf("error is %v", err)
	}
	if _, err := h.Expand(t.Context(), Expansion{Driver: driverName, Handle: "v", Name: "n", Bytes: 1}); err == nil {
		t.Error("it is expanded")
	}
	if err := h.Release(t.Context(), h.podDir("a")); err == nil || !strings.Contains(err.Error(), "later version") {
		t.Errorf("it is released: %v", err)
	}
	h.called("")
	if now, _ := os.ReadFile(h.recordPath("v")); string(now) != string(text) {
		t.Errorf("the record is %s", now)
	}
	must(t, os.WriteFile(h.recordPath("v"), before, 0o600))
	h.open("")
	must(t, h.Release(t.Context(), h.podDir("a")))
	h.nothing()
}

// TestOrphan: a mount without a record is found, and undone only where its driver and its handle are known.
func TestOrphan(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	h.publish(h.request("a", "v"))
	must(t, os.RemoveAll(filepath.Join(h.root, "csi")))
	must(t, removeData(filepath.Join(h.podDir("a"), "volumes", pluginName, "pv-v")))
	h.open("")
	found, err := h.Check(t.Context())
	must(t, err)
	if len(found) != 2 || found[0].What != Orphan || !found[0].CanUndo || found[0].Handle != "v" || found[1].What != Orphan || found[1].CanUndo {
		t.Fatalf("found %+v", found)
	}
	if err := h.Undo(t.Context(), found[1]); err == nil {
		t.Error("what is not known is undone")
	}
	must(t, writeData(filepath.Dir(found[1].Path), data{Driver: driverName, Handle: "v"}))
	found, err = h.Check(t.Context())
	must(t, err)
	slices.Reverse(found) // pods before what they share
	for _, f := range found {
		must(t, h.Undo(t.Context(), f))
	}
	if found, err := h.Check(t.Context()); err != nil || len(found) > 0 {
		t.Errorf("found %v, %v", found, err)
	}
	h.nothing()
}

// TestFull: where nothing can be recorded nothing is done.
func TestFull(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	dir := t.TempDir()
	must(t, unix.Mount("small", dir, "tmpfs", 0, "size=8k"))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	h.Close()
	m, err := New(Config{Root: h.root, Records: filepath.Join(dir, "r"), Drivers: h.drivers})
	must(t, err)
	h.Manager = m
	must(t, os.WriteFile(dir+"/full", make([]byte, 8192), 0o600))
	if _, err := h.Publish(t.Context(), h.request("a", "v")); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("error is %v", err)
	}
	h.called("")
	must(t, os.Remove(dir+"/full"))
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT, "size=4m"))
	h.register()
	h.publish(h.request("a", "v"))
	must(t, h.Release(t.Context(), h.podDir("a")))
	h.nothing()
}
