package cni

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// notebook is a CNI plugin that writes down what it is told, and its network.
func notebook(t *testing.T, c *Config) (told func() string) {
	t.Helper()
	dir := t.TempDir()
	note := filepath.Join(dir, "note")
	write(t, filepath.Join(dir, "notebook"), `#!/bin/sh
cat > /dev/null
[ "$CNI_COMMAND" = VERSION ] && { echo '{"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}'; exit; }
echo "$CNI_COMMAND $CNI_CONTAINERID" >> `+note+`
[ "$CNI_COMMAND" = ADD ] && echo '{"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "/x"}],
	"ips": [{"address": "192.0.2.9/24", "interface": 0}]}'
exit 0
`)
	must(t, os.Chmod(filepath.Join(dir, "notebook"), 0o755))
	c.BinDirs = []string{dir}
	write(t, filepath.Join(c.ConfDir, "87-other.conflist"),
		`{"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "notebook"}]}`)
	return func() string {
		b, err := os.ReadFile(note)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return strings.ReplaceAll(strings.TrimSpace(string(b)), "\n", ", ")
	}
}

// TestSwitchedNetwork: a pod is taken off the network that it was set up with, by what made it, when the next process
// uses the other.
func TestSwitchedNetwork(t *testing.T) {
	c := testConfig(t, testBridge, testCIDR)
	own := c
	own.ConfDir = "" // as --network builtin
	needs := c
	needs.NeedConf = true // as --network cni
	first := open(t, needs)

	// Nothing is there yet: pods wait, and do not get another network meanwhile.
	if err := first.Status(); err == nil || !strings.Contains(err.Error(), "no network configuration") ||
		!strings.Contains(err.Error(), c.ConfDir) {
		t.Errorf("status: %v", err)
	}
	path, err := first.NewNamespace("early")
	must(t, err)
	if _, err := first.Setup(t.Context(), Pod{ID: "early", NetNS: path}); err == nil ||
		!strings.Contains(err.Error(), "no network configuration") {
		t.Errorf("set up without a configuration: %v", err)
	}
	teardown(t, first, Pod{ID: "early", NetNS: path})

	told := notebook(t, &needs)
	first = reopen(t, needs)
	must(t, first.Status())
	a := setup(t, first, "aaa")
	if a.ip() != "192.0.2.9" || told() != "ADD aaa" {
		t.Fatalf("got %s, told %q", a.ip(), told())
	}
	own.BinDirs = needs.BinDirs
	second := reopen(t, own)
	b := setup(t, second, "bbb")
	if b.ip() != "10.213.0.2" {
		t.Errorf("the network built in gives %s", b.ip())
	}
	teardown(t, second, a.Pod)
	if told() != "ADD aaa, DEL aaa" {
		t.Errorf("the plugin was told %q", told())
	}
	third := reopen(t, needs)
	setup(t, third, "ccc")
	b.ns.Close()
	teardown(t, third, b.Pod)
	if got := addresses(t, third); len(got) != 0 {
		t.Errorf("addresses are left: %v", got)
	}
	eventually(t, "a veth pair is left", func() bool { return len(veths(t, testBridge)) == 0 })
	// What nobody knows any more is found too.
	must(t, reopen(t, own).Collect(t.Context(), nil))
	if told() != "ADD aaa, DEL aaa, ADD ccc, DEL ccc" {
		t.Errorf("the plugin was told %q", told())
	}
}
