package check

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-node/berth/agent/config"
)

// TestPodNetwork: a configuration that another program has left is told of.
func TestPodNetwork(t *testing.T) {
	dir := t.TempDir()
	e := config.Embedded{Network: config.NetworkBuiltin, CNIConfDir: dir}
	if a := podNetwork(e); a.status != OK || !strings.Contains(a.found, "builtin") {
		t.Errorf("got %+v", a)
	}
	path := filepath.Join(dir, "87-podman-bridge.conflist")
	if err := os.WriteFile(path, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if a := podNetwork(e); a.status != Limited || !strings.Contains(a.found, path+" is not used") {
		t.Errorf("got %+v", a)
	}
}
