package system

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRuntimeClasses runs pods by other runtimes than the built-in one.
func TestRuntimeClasses(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	b, err := os.ReadFile(filepath.Join(filepath.Dir(testImages(t)[0]), "wasm.tar"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(n.Dir, "images", "wasm.tar"), string(b))
	n.start()
	n.apply("crun.yaml", `
apiVersion: v1
kind: Pod
metadata: {name: other}
spec:
  runtimeClassName: crun
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: `+image+`
    command: [sh, -c, 'echo by crun; exec sleep 1000']
`)
	n.apply("wasm.yaml", `
apiVersion: v1
kind: Pod
metadata: {name: module}
spec:
  runtimeClassName: wasm
  containers:
  - name: main
    image: berth.test/wasm:1
    args: [sleep]
    env: [{name: FROM_POD, value: by wazero}]
`)
	n.apply("missing.yaml", `
apiVersion: v1
kind: Pod
metadata: {name: missing}
spec:
  runtimeClassName: nosuch
  containers: [{name: main, image: `+image+`, command: [sleep, "1000"]}]
`)
	p := n.waitReady("other")
	n.waitLog("other", "by crun\n")
	if got := n.must("exec", "other", "--", "hostname"); got != "other-node\n" {
		t.Errorf("exec: got %q", got)
	}
	if roots, err := os.ReadDir(n.Dir + "/run/runtimes/crun"); err != nil || len(roots) != 1 {
		t.Errorf("crun has %v, %v", roots, err)
	}
	n.requireCgroup(p, "main")
	n.waitReady("module")
	n.waitLog("module", "by wazero\n")
	n.kill()
	n.start()
	n.requireSame(p, n.waitReady("other"))
	n.eventually("an event with the reason", func() error {
		if out := n.must("events"); !strings.Contains(out, `no runtime for this handler is configured: "nosuch"`) {
			return errors.New(out)
		}
		return nil
	})
	for _, f := range []string{"crun.yaml", "wasm.yaml", "missing.yaml"} {
		n.remove(f)
	}
	for _, name := range []string{"other", "module", "missing"} {
		n.waitGone(name)
	}
	n.requireNoPods()
	if left, err := os.ReadDir(n.Dir + "/run/runtimes/crun"); err != nil || len(left) > 0 {
		t.Errorf("crun still has %v, %v", left, err)
	}
}
