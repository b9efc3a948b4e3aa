package system

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestKubeletConfiguration starts a node with a kubelet's file, a drop-in and berth's own document, and has them read
// again.
func TestKubeletConfiguration(t *testing.T) {
	t.Parallel()
	port, health := freePort(t), freePort(t)
	n := newNode(t)
	file, dropIn := filepath.Join(n.Dir, "config.yaml"), filepath.Join(n.Dir, "config.d", "10.conf")
	if err := os.Mkdir(filepath.Dir(dropIn), 0o755); err != nil {
		t.Fatal(err)
	}
	const kubelet = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
	const berth = "apiVersion: config.berth.node/v1alpha1\nkind: BerthConfiguration\n"
	write(t, file, kubelet+fmt.Sprintf("address: 127.0.0.1\nport: %d\nhealthzPort: 1\nallowedUnsafeSysctls: "+
		"[net.core.somaxconn]\nseccompDefault: true\nfailSwapOn: true\n", port))
	write(t, dropIn, kubelet+fmt.Sprintf("healthzPort: %d\n---\n", health)+berth+"backoffReset: 1m\n")
	n.args = append(n.args, "--config="+file, "--config-dir="+filepath.Dir(dropIn))
	n.launch()
	<-n.exited
	if log := n.logTail(); n.cmd.ProcessState.Success() || !strings.Contains(log, "backoffReset") {
		t.Fatalf("an unknown field was taken: %s", log)
	}
	write(t, dropIn, kubelet+fmt.Sprintf("healthzPort: %d\n---\n", health)+berth+"apiAllow: ['user:ann=pods']\n")
	n.start()
	n.logHas("WARN", "failSwapOn: swap is no reason to refuse")

	n.apply("a.yaml", pod("a", "\n  securityContext: {sysctls: [{name: net.core.somaxconn, value: '512'}]}"+sleeping))
	n.waitReady("a")
	if out := n.sh("a", "cat /proc/sys/net/core/somaxconn; grep Seccomp: /proc/1/status"); !strings.HasPrefix(out,
		"512\n") || !strings.Contains(out, "Seccomp:\t2") {
		t.Errorf("in the pod: %q", out)
	}
	configz := func() map[string]any {
		t.Helper()
		resp, err := n.client.Get("http://node/configz")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		var out struct{ Kubeletconfig map[string]any }
		if err := json.Unmarshal(b, &out); err != nil {
			t.Fatalf("%v: %s", err, b)
		}
		return out.Kubeletconfig
	}
	if c := configz(); c["port"] != float64(port) || c["healthzPort"] != float64(health) || c["seccompDefault"] != true {
		t.Errorf("%v", c)
	}

	// The file is read again: who may do what changes at once, the port at the next start.
	write(t, dropIn, kubelet+"healthzPort: 1\nlogging: {verbosity: 4}\n---\n"+berth+"apiAllow: ['user:ann=pods', "+
		"'user:bob=pods']\n")
	n.cmd.Process.Signal(syscall.SIGHUP)
	n.logHas("configuration read again", "--api-allow")
	n.logHas("WARN", "only at the next start", "--healthz-port")
	if c := configz(); c["healthzPort"] != float64(health) || !strings.Contains(fmt.Sprint(c["berth"]), "user:bob=pods") {
		t.Errorf("after SIGHUP: %v", c)
	}
	write(t, dropIn, "broken: [")
	n.cmd.Process.Signal(syscall.SIGHUP)
	n.logHas("ERROR", "configuration is not taken over", "10.conf")
	if out, _, code := n.berth("config", "check", "--config="+file); code != 0 || !strings.Contains(out, "failSwapOn: ") {
		t.Errorf("check: %d %s", code, out)
	}
	if out, _, code := n.berth("config", "show", "--config="+file, "--port=7"); code != 0 ||
		!strings.Contains(out, "port: 7\n") || !strings.Contains(out, "seccompDefault: true\n") {
		t.Errorf("show: %d %s", code, out)
	}
}
