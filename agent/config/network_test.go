package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPodNetwork(t *testing.T) {
	dir := t.TempDir()
	empty := t.TempDir()
	for _, name := range []string{"README", "10-x.conflist~", "20-other.conf", "87-podman-bridge.conflist"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("{}"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "05-dir.conf"), 0o755); err != nil {
		t.Fatal(err)
	}
	first := filepath.Join(dir, "20-other.conf")
	for _, c := range []struct {
		network, dir string
		station      Station
		kind, why    string
		required     bool
		passed       string
	}{
		{NetworkAuto, DefaultCNIConfDir, Alone, NetworkBuiltin, "on its own", false, NetworkConfiguration(DefaultCNIConfDir)},
		{NetworkAuto, DefaultCNIConfDir, Member, NetworkCNI, "cluster", true, ""},
		{NetworkAuto, DefaultCNIConfDir, Served, NetworkCNI, "clients", false, ""},
		{NetworkAuto, dir, Alone, NetworkCNI, "--cni-conf-dir says so", false, ""},
		{NetworkAuto, empty, Alone, NetworkCNI, "has no configuration, the one built in", false, ""},
		{NetworkAuto, "", Alone, NetworkBuiltin, "is empty", false, ""},
		{NetworkAuto, "", Member, NetworkBuiltin, "is empty", false, ""},
		{NetworkBuiltin, dir, Member, NetworkBuiltin, "--network says so", false, first},
		{NetworkBuiltin, empty, Alone, NetworkBuiltin, "--network says so", false, ""},
		{NetworkCNI, dir, Alone, NetworkCNI, "--network says so", true, ""},
	} {
		e := Embedded{Network: c.network, CNIConfDir: c.dir}
		n := e.PodNetwork(c.station)
		if n.Kind != c.kind || !strings.Contains(n.Why, c.why) || n.Required != c.required || n.Passed != c.passed ||
			(n.Kind == NetworkCNI) != (n.Dir != "") {
			t.Errorf("%+v: got %+v", c, n)
		}
	}
	if got := NetworkConfiguration(dir); got != first {
		t.Errorf("the first configuration is %q", got)
	}
	for _, bad := range [][]string{{"--network=flannel"}, {"--network=cni", "--cni-conf-dir="}} {
		if _, err := parse(t, bad...); err == nil || !strings.Contains(err.Error(), "--network") {
			t.Errorf("%q: got %v", bad, err)
		}
	}
	c, err := parse(t)
	if err != nil || c.Network != NetworkAuto {
		t.Errorf("got %q, %v", c.Network, err)
	}
}
