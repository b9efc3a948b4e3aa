package vm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-node/berth/test/history"
)

// planeUnit keeps a control plane running on the machine's disk, once its program is mounted.
const planeUnit = `cat >/etc/systemd/system/plane.service <<'END'
[Service]
ExecStart=/run/berth-vm/berth-control serve --data-dir /var/lib/plane --port 8080 --advertise-address 10.0.2.15
Restart=always
END
systemctl daemon-reload
sync`

// planeLimits are those of a machine whose processor is emulated: a request takes a second there that takes a
// millisecond elsewhere, beside others.
var planeLimits = history.Limits{Writers: 12, Answer: 2 * time.Minute, Era: 20 * time.Second, Patience: 10 * time.Minute}

// TestPlane cuts the power of a control plane's machine under writes, VM_CUTS times: every write that was acknowledged
// is there, none twice, and a watch that goes on where it was cut off has heard of each.
func TestPlane(t *testing.T) {
	program := os.Getenv("VM_CONTROL")
	if os.Getenv("VM_IMAGE") == "" || program == "" {
		t.Skip("needs a virtual machine: make control-powercut")
	}
	dir := t.TempDir()
	copyFile(t, program, filepath.Join(dir, "berth-control"))
	copyFile(t, os.Getenv("VM_GUEST"), filepath.Join(dir, "guest"))
	m := newMachine(t, dir)
	m.boot()
	m.run(planeUnit)
	m.run("systemctl start plane")
	const kubeconfig = "/var/lib/plane/admin.kubeconfig"
	m.await("the control plane's credentials", "test -s "+kubeconfig)
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(m.run("cat " + kubeconfig)))
	m.must(err)
	config.Host = fmt.Sprintf("https://127.0.0.1:%d", m.port)
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	m.must(err)
	ready := func() {
		t.Helper()
		for end := time.Now().Add(planeLimits.Patience); ; time.Sleep(time.Second) { // it is no event outside
			ctx, cancel := context.WithTimeout(t.Context(), planeLimits.Answer)
			err := client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
			cancel()
			if err == nil {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("the control plane is not ready: %v: %s", err, m.run("journalctl -u plane --no-pager -n 60"))
			}
		}
	}
	ready()
	cuts, err := strconv.Atoi(os.Getenv("VM_CUTS"))
	if err != nil {
		cuts = 10
	}
	h := history.Begin(t, client, metav1.NamespaceDefault, planeLimits)
	for n := range cuts {
		wait := time.Duration(rand.IntN(20000)) * time.Millisecond
		time.Sleep(wait) // the moment of the cut
		m.cut()
		m.boot()
		m.run("systemctl start plane")
		ready()
		t.Logf("cut %d after %s", n, wait)
	}
	h.End(t)
	if out := m.run("journalctl -u plane --no-pager | grep -i -e damaged -e corrupt -e quarantin || true"); out != "" {
		t.Errorf("after the cuts: %s", out)
	}
}
