package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-node/berth/csi"
)

// TestUnreadable wants it to be told of a volume that it is not known who has it.
func TestUnreadable(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "csi")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		key("d", "later") + recordSuffix: `{"version":9}`, key("d", "torn") + recordSuffix: `{"vers`, key("d", "before") + badSuffix: "",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	drivers := csi.NewDrivers(csi.Config{})
	defer drivers.Close()
	m, err := New(Config{Root: root, Drivers: drivers})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, handle := range []string{"later", "torn", "before"} {
		if m.Unreadable("d", handle) == nil {
			t.Errorf("%s is said to be known", handle)
		}
	}
	if err := m.Unreadable("d", "other"); err != nil {
		t.Error(err)
	}
}

// TestPlaceTaken wants no driver to be told of a place that another volume is in, as when a PersistentVolume is changed
// while a pod has it.
func TestPlaceTaken(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	h.volume("w")
	was, is := h.request("a", "v"), h.request("a", "w")
	is.Name = was.Name
	h.publish(was)
	h.driver.said()
	if _, err := h.Publish(t.Context(), is); err == nil || !strings.Contains(err.Error(), "the pod has volume v") {
		t.Errorf("got %v", err)
	}
	h.called("")
	other := h.request("b", "w") // another pod has the new one
	other.Name = was.Name
	h.publish(other)
	must(t, h.Release(t.Context(), h.podDir("a")))
	is.Pod.Name = "again"
	h.open("")
	h.publish(is)
	must(t, h.Release(t.Context(), h.podDir("a")))
	must(t, h.Release(t.Context(), h.podDir("b")))
	h.nothing()
}
