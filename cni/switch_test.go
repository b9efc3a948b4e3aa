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

// reboot makes the records of a network those of an earlier boot, and takes away what does not outlive one.
func reboot(t *testing.T, c Config) {
	t.Helper()
	must(t, os.RemoveAll(c.CacheDir))
	files, err := filepath.Glob(filepath.Join(c.RecordDir, "*"))
	must(t, err)
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	must(t, err)
	for _, f := range files {
		data, err := os.ReadFile(f)
		must(t, err)
		write(t, f, strings.ReplaceAll(string(data), strings.TrimSpace(string(boot)), boot1))
	}
}

// TestBootOfForeignNetwork: plugins keep addresses over a boot, and are told of the end of pods after it.
func TestBootOfForeignNetwork(t *testing.T) {
	c := testConfig(t, testBridge, testCIDR)
	told := notebook(t, &c)
	n := open(t, c)
	for _, id := range []string{"aaa", "bbb", "ccc"} {
		setup(t, n, id)
	}
	if told() != "ADD aaa, ADD bbb, ADD ccc" {
		t.Fatalf("told %q", told())
	}
	reboot(t, c)
	n = reopen(t, c)
	teardown(t, n, Pod{ID: "aaa"})
	if told() != "ADD aaa, ADD bbb, ADD ccc, DEL aaa" {
		t.Errorf("told %q", told())
	}
	// A plugin that fails keeps no pod of the boot before, and is told again by the next start.
	plugin := filepath.Join(c.BinDirs[0], "notebook")
	whole, err := os.ReadFile(plugin)
	must(t, err)
	write(t, plugin, "#!/bin/sh\ncat > /dev/null\nexit 1\n")
	teardown(t, n, Pod{ID: "bbb"})
	write(t, plugin, string(whole))
	must(t, reopen(t, c).Collect(t.Context(), []string{"ccc"}))
	if told() != "ADD aaa, ADD bbb, ADD ccc, DEL aaa, DEL bbb" {
		t.Errorf("told %q", told())
	}
	// One that is not there any more cannot be told at all.
	must(t, os.Remove(plugin))
	must(t, reopen(t, c).Collect(t.Context(), nil))
	if ids, err := n.foreign.records.ids(); err != nil || len(ids) > 0 {
		t.Errorf("records are left: %v, %v", ids, err)
	}
}

// TestDamagedNetworkRecord: a record that cannot be read keeps no pod, and what is known elsewhere is used.
func TestDamagedNetworkRecord(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, c Config, r records){
		"one": func(t *testing.T, _ Config, r records) { write(t, r.paths("aaa")[0], "") },
		"both": func(t *testing.T, _ Config, r records) {
			write(t, r.paths("aaa")[0], `{"conf": {"cniV`)
			write(t, r.paths("aaa")[1], "\x00\x00")
		},
		"both, and libcni's": func(t *testing.T, c Config, r records) {
			write(t, r.paths("aaa")[0], "[]")
			write(t, r.paths("aaa")[1], "{}")
			write(t, filepath.Join(c.CacheDir, "results", "other-aaa-eth0"), "{")
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := testConfig(t, testBridge, testCIDR)
			told := notebook(t, &c)
			n := open(t, c)
			pod := setup(t, n, "aaa")
			damage(t, c, n.foreign.records)
			teardown(t, reopen(t, c), pod.Pod)
			if told() != "ADD aaa, DEL aaa" {
				t.Errorf("told %q", told())
			}
			if ids, err := n.foreign.records.ids(); err != nil || len(ids) > 0 {
				t.Errorf("records are left: %v, %v", ids, err)
			}
		})
	}
	t.Run("all, and no configuration", func(t *testing.T) {
		c := testConfig(t, testBridge, testCIDR)
		n := open(t, c)
		for _, path := range n.foreign.records.paths("aaa") {
			write(t, path, "null")
		}
		must(t, reopen(t, c).Collect(t.Context(), nil))
		if _, err := os.Lstat(n.foreign.records.paths("aaa")[0] + damagedExt); err != nil {
			t.Errorf("what could not be read is not there to be looked at: %v", err)
		}
	})
}
