package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/invoke"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
)

// plugins skips the test where Debian's package containernetworking-plugins is missing.
func plugins(t testing.TB) {
	t.Helper()
	needRoot(t)
	if _, err := os.Stat("/usr/lib/cni/bridge"); err != nil {
		t.Skip("needs the CNI plugins of Debian's containernetworking-plugins in /usr/lib/cni:", err)
	}
}

// foreignConf is a bridge of the executed plugins, with host ports by iptables if asked for.
func foreignConf(dir, bridge string, ports bool) string {
	portmap := ""
	if ports {
		portmap = `,{"type": "portmap", "capabilities": {"portMappings": true}, "snat": true}`
	}
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "other", "plugins": [
		{"type": "bridge", "bridge": %q, "isGateway": true, "ipam": {"type": "host-local", "dataDir": %q,
		 "ranges": [[{"subnet": "10.215.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}%s]}`, bridge, dir, portmap)
}

func write(t testing.TB, path, text string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(text), 0o644))
}

func dropLink(t testing.TB, name string) {
	t.Cleanup(func() {
		if l, err := netlink.LinkByName(name); err == nil {
			if err := netlink.LinkDel(l); err != nil {
				t.Error(err)
			}
		}
	})
}

func leases(t testing.TB, dir string) (n int) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "other", "10.*"))
	must(t, err)
	return len(all)
}

func TestForeignNetwork(t *testing.T) {
	plugins(t)
	c := testConfig(t, testBridge, testCIDR)
	n := open(t, c)
	own := setup(t, n, "own")
	dir := t.TempDir()
	dropLink(t, "btst9")
	conf := filepath.Join(c.ConfDir, "10-other.conflist")
	write(t, conf, foreignConf(dir, "btst9", true))
	if err := n.Status(); err != nil {
		t.Fatalf("status: %v", err)
	}
	a := setup(t, n, "aaa", PortMapping{HostPort: 8080, ContainerPort: 80, Protocol: "TCP"})
	b := setup(t, n, "bbb")
	if !strings.HasPrefix(a.ip(), "10.215.0.") || len(a.MAC) != 6 || len(a.Interfaces) != 1 ||
		len(a.Interfaces[0].IPs) != 1 {
		t.Errorf("result: got %+v", a.Result)
	}
	serve(t, a.ns, "a", 80)
	wantAnswer(t, b.ns, "tcp4", a.ip()+":80", "a", b.ip())
	if who, _, err := askUntil(t, nil, "tcp4", "127.0.0.1:8080"); err != nil || who != "a" {
		t.Errorf("host port: got %q, %v", who, err)
	}
	if got := len(addresses(t, n)); got != 1 {
		t.Errorf("addresses of the network built in: got %d, want that of the pod before", got)
	}

	// Each goes the way it came, whatever the configuration is now.
	must(t, os.Remove(conf))
	teardown(t, n, own.Pod)
	teardown(t, n, Pod{ID: "bbb", NetNS: b.NetNS})
	must(t, n.RemoveNamespace("aaa")) // its namespace is gone first
	teardown(t, n, Pod{ID: "aaa", NetNS: a.NetNS})
	teardown(t, n, Pod{ID: "aaa"})
	if got := leases(t, dir); got != 0 {
		t.Errorf("leases: got %d, want none", got)
	}
	if ids, err := n.foreign.records.ids(); err != nil || len(ids) != 0 {
		t.Errorf("records: got %v, %v", ids, err)
	}
	if got := setup(t, n, "ccc"); !strings.HasPrefix(got.ip(), "10.213.0.") {
		t.Errorf("without a configuration: got %s, want the network built in", got.ip())
	}
}

// TestForeignCrash: the first plugin has run, the second has not, and the agent is gone; and one whose chain fails.
func TestForeignCrash(t *testing.T) {
	plugins(t)
	c := testConfig(t, testBridge, testCIDR)
	n := open(t, c)
	dir := t.TempDir()
	dropLink(t, "btst9")
	list := foreignConf(dir, "btst9", false)
	write(t, c.ConfDir+"/10-other.conflist", list)

	path, err := n.NewNamespace("aaa")
	must(t, err)
	rt := Pod{ID: "aaa", NetNS: path}.runtimeConf()
	must(t, n.foreign.records.put("aaa", record{Conf: []byte(list), NetNS: path, Args: rt.Args}))
	half, err := parseConf([]byte(list))
	must(t, err)
	_, err = n.foreign.cni.AddNetworkList(t.Context(), half, rt)
	must(t, err)
	must(t, os.Remove(filepath.Join(c.CacheDir, "results", "other-aaa-eth0")))
	must(t, os.WriteFile(filepath.Join(n.foreign.records.volatile, "half.tmp"), []byte("{"), 0o600))

	n = reopen(t, c)
	if _, err := n.Setup(t.Context(), Pod{ID: "aaa", NetNS: path}); err != nil {
		t.Errorf("set up again: %v", err)
	}
	if got := leases(t, dir); got != 1 {
		t.Errorf("leases: got %d, want 1", got)
	}
	n = reopen(t, c)
	must(t, n.Collect(t.Context(), nil))
	if ids, err := n.foreign.records.ids(); err != nil || len(ids) != 0 || leases(t, dir) != 0 {
		t.Errorf("left: records %v, %d leases, %v", ids, leases(t, dir), err)
	}

	write(t, c.ConfDir+"/10-other.conflist",
		strings.Replace(list, `]}`, `,{"type": "tuning", "sysctl": {"net.ipv4.no.such": "1"}}]}`, 1))
	write(t, c.ConfDir+"/10-other.conflist",
		list[:len(list)-2]+`,{"type": "tuning", "sysctl": {"net.ipv4.no.such": "1"}}]}`)
	path, err = n.NewNamespace("bbb")
	must(t, err)
	if _, err := n.Setup(t.Context(), Pod{ID: "bbb", NetNS: path}); err == nil {
		t.Error("a failing plugin: no error")
	}
	if ids, err := n.foreign.records.ids(); err != nil || len(ids) != 0 || leases(t, dir) != 0 {
		t.Errorf("left of a failed chain: records %v, %d leases, %v", ids, leases(t, dir), err)
	}
}

func TestConfDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "net.d")
	c := confDir{dir: dir}
	want := func(name, problem string) {
		t.Helper()
		list, err := c.get()
		switch {
		case problem != "" && (err == nil || !strings.Contains(err.Error(), problem)):
			t.Errorf("got error %v, want %q", err, problem)
		case problem == "" && err != nil:
			t.Error(err)
		case name != "" && list.Name != name:
			t.Errorf("got network %s, want %s", list.Name, name)
		}
	}
	want("", errNoConf.Error())
	write(t, dir+"/readme.txt", "x")
	want("", errNoConf.Error())
	write(t, dir+"/20.conf", `{"cniVersion": "0.4.0", "name": "second", "type": "x"}`)
	want("second", "")
	write(t, dir+"/10.conflist", `{"cniVersion": "1.0.0", "name": "first", "plugins": [{"type": "x"}]}`)
	want("first", "")
	write(t, dir+"/10.conflist", `{"cniVersion": "1.0.0", "name": "changed", "plugins": [{"type": "x"}]}`)
	want("changed", "")
	write(t, dir+"/10.conflist", `{"cniVersion": "1.0.0", "name": "half", "plug`)
	want("", "10.conflist")
	write(t, dir+"/10.conflist", `{"cniVersion": "1.1.0", "name": "apart"}`)
	want("", "no plugin")
	write(t, dir+"/apart/5.conf", `{"type": "y"}`)
	want("apart", "")
	must(t, os.Remove(dir+"/10.conflist"))
	want("second", "")
	must(t, os.RemoveAll(dir))
	want("", errNoConf.Error())
	if _, err := (&confDir{}).get(); !errors.Is(err, errNoConf) {
		t.Errorf("no directory: got %v", err)
	}
}

func TestStatus(t *testing.T) {
	c := testConfig(t, testBridge, testCIDR)
	n := open(t, c)
	write(t, c.ConfDir+"/1.conf", `{"cniVersion": "1.0.0", "name": "x", "type": "no-such-plugin"}`)
	if err := n.Status(); err == nil || !strings.Contains(err.Error(), "no-such-plugin") {
		t.Errorf("missing plugin: got %v", err)
	}
	path, err := n.NewNamespace("aaa")
	must(t, err)
	if _, err := n.Setup(t.Context(), Pod{ID: "aaa", NetNS: path}); err == nil {
		t.Error("set up with a missing plugin: no error")
	}
	must(t, os.Remove(c.ConfDir+"/1.conf"))
	must(t, n.Status())
	teardown(t, n, Pod{ID: "aaa", NetNS: path})
}

// TestOwnPluginsInConfDir: the plugins built in, named in a configuration, with an executed IPAM plugin.
func TestOwnPluginsInConfDir(t *testing.T) {
	plugins(t)
	c := testConfig(t, testBridge, testCIDR)
	n := open(t, c)
	dropLink(t, "btst8")
	dir := t.TempDir()
	write(t, c.ConfDir+"/1.conflist", fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "other", "plugins": [
		{"type": "berth-loopback"},
		{"type": "berth-bridge", "bridge": "btst8", "mtu": 1400,
			"ipam": {"type": "host-local", "dataDir": %q, "subnet": "10.216.0.0/24"}}]}`, dir))
	must(t, n.Status())
	a := setup(t, n, "aaa")
	if !strings.HasPrefix(a.ip(), "10.216.0.") || a.Interfaces[0].MTU != 1400 {
		t.Errorf("result: got %+v", a.Result)
	}
	teardown(t, n, a.Pod)
	if got := leases(t, dir); got != 0 {
		t.Errorf("leases: got %d, want none", got)
	}
}

// TestSmallMTU: an interface that is too small for IPv6 has no settings of it.
func TestSmallMTU(t *testing.T) {
	c := testConfig(t, testBridge, testCIDR)
	n := open(t, c)
	dropLink(t, "btst8")
	write(t, c.ConfDir+"/1.conflist", fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "small", "plugins": [
		{"type": "berth-bridge", "bridge": "btst8", "mtu": 1000,
			"ipam": {"type": "berth-ipam", "dataDir": %q, "subnet": "10.216.0.0/24"}}]}`, t.TempDir()))
	a := setup(t, n, "aaa")
	serve(t, a.ns, "a", 80)
	wantAnswer(t, nil, "tcp4", a.ip()+":80", "a", "10.216.0.1")
	teardown(t, n, a.Pod)
}

// TestExecuted runs the plugins built in as programs of their own, as another runtime would.
func TestExecuted(t *testing.T) {
	needRoot(t)
	c := testConfig(t, testBridge, testCIDR)
	n := open(t, c)
	bin := t.TempDir()
	for _, name := range []string{pluginBridge, pluginIPAM, pluginPortMap, pluginLoopback} {
		must(t, os.Symlink("/proc/self/exe", filepath.Join(bin, name)))
	}
	self, err := os.Executable()
	must(t, err)
	for _, name := range []string{pluginBridge, pluginIPAM, pluginPortMap, pluginLoopback} {
		must(t, os.Remove(filepath.Join(bin, name)))
		must(t, os.Symlink(self, filepath.Join(bin, name)))
	}
	path, err := n.NewNamespace("aaa")
	must(t, err)
	args := func(command string) *invoke.Args {
		return &invoke.Args{Command: command, ContainerID: "aaa", NetNS: path, IfName: "eth0", Path: bin}
	}
	conf := map[string]any{
		"cniVersion": "1.1.0", "name": testBridge, "bridge": testBridge, "subnet": testCIDR, "ipMasq": true,
		"ipam": n.own.conf.IPAM,
	}
	call := func(name, command string) *types100.Result {
		t.Helper()
		stdin, err := json.Marshal(conf)
		must(t, err)
		if command != "ADD" {
			must(t, invoke.ExecPluginWithoutResult(t.Context(), filepath.Join(bin, name), stdin, args(command), nil))
			return nil
		}
		raw, err := invoke.ExecPluginWithResult(t.Context(), filepath.Join(bin, name), stdin, args(command), nil)
		must(t, err)
		r, err := types100.NewResultFromResult(raw)
		must(t, err)
		return r
	}
	if r := call(pluginLoopback, "ADD"); r.Interfaces[0].Name != "lo" {
		t.Errorf("loopback: got %+v", r)
	}
	r := call(pluginBridge, "ADD")
	conf["prevResult"] = r
	conf["runtimeConfig"] = map[string]any{
		"portMappings": []portMapping{{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"}},
	}
	call(pluginPortMap, "ADD")
	ns, err := os.Open(path)
	must(t, err)
	serve(t, ns, "a", 80)
	defer ns.Close()
	wantAnswer(t, nil, "tcp4", "127.0.0.1:8080", "a", "10.213.0.1")
	for _, name := range []string{pluginLoopback, pluginIPAM, pluginBridge, pluginPortMap} {
		call(name, "CHECK")
		call(name, "STATUS")
	}
	// The agent sees what they have made.
	if got := addresses(t, n); got["aaa"].String() != r.IPs[0].Address.IP.String() {
		t.Errorf("addresses: got %v, want %s for aaa", got, r.IPs[0].Address.IP)
	}
	call(pluginPortMap, "DEL")
	for range 2 {
		call(pluginBridge, "DEL")
	}
	if len(veths(t, testBridge)) != 0 || len(addresses(t, n)) != 0 || hostPorts(t, n) != 0 {
		t.Errorf("left: %v, %v, %d ports", veths(t, testBridge), addresses(t, n), hostPorts(t, n))
	}
	conf["cni.dev/valid-attachments"] = []any{}
	for _, name := range []string{pluginLoopback, pluginIPAM, pluginBridge, pluginPortMap} {
		call(name, "GC")
	}
	out, err := exec.CommandContext(context.Background(), filepath.Join(bin, pluginBridge)).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "1.1.0") {
		t.Errorf("without a command: got %q, %v", out, err)
	}
	conf["bridge"] = ""
	stdin, err := json.Marshal(conf)
	must(t, err)
	if _, err := invoke.ExecPluginWithResult(t.Context(), filepath.Join(bin, pluginBridge), stdin, args("ADD"),
		nil); err == nil || !strings.Contains(err.Error(), "bridge") {
		t.Errorf("bad configuration: got %v", err)
	}
}
