package system

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestLostRecords takes the runtime's records away, and their copy of this boot, while no agent runs. The pods are
// adopted by what they have of their own: the next agent finds the same containers and processes, restarts nothing, and
// removes all of them when it is told.
func TestLostRecords(t *testing.T) {
	t.Parallel()
	torn := func(path string) error {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for i := 1; i*512 < len(b); i += 2 {
			copy(b[i*512:min((i+1)*512, len(b))], bytes.Repeat([]byte{0}, 512))
		}
		return os.WriteFile(path, b, 0o600)
	}
	for name, lose := range map[string]func(path string) error{"removed": os.Remove, "torn": torn} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := startNode(t)
			n.apply("main.yaml", pod("main", `
  volumes: [{name: scratch, emptyDir: {}}]
  initContainers: [{name: init, image: `+image+`, command: [sh, -c, "echo kept >/scratch/of"], volumeMounts: [{name: scratch, mountPath: /scratch}]}]
  containers:
  - {name: main, image: `+image+`, command: [sleep, '1000000'], volumeMounts: [{name: scratch, mountPath: /scratch}]}
  - {name: beside, image: `+image+`, command: [sleep, '1000000'], ports: [{containerPort: 80}]}`))
			n.apply("host.yaml", pod("host", "\n  hostNetwork: true\n  shareProcessNamespace: true"+idle))
			before := map[string]*corev1.Pod{"main": n.waitReady("main"), "host": n.waitReady("host")}
			n.sh("main", "echo mine >/own")
			// What the command above has left may end at any time.
			processes := slices.DeleteFunc(n.processes(),
				func(p string) bool { return !strings.Contains(p, "sleep") && !strings.Contains(p, "berth-keeper") })
			if len(processes) < 5 {
				t.Errorf("there are but %q", processes)
			}
			n.kill()
			for _, f := range []string{"root/runtime.db", "run/records"} {
				if err := lose(filepath.Join(n.Dir, f)); err != nil {
					t.Fatal(err)
				}
			}
			n.start()
			for name, p := range before {
				n.requireSame(p, n.waitReady(name))
			}
			if got := n.sh("main", "cat /own /scratch/of"); got != "mine\nkept\n" {
				t.Errorf("its files are %q", got)
			}
			for _, p := range processes {
				if !strings.Contains(strings.Join(n.processes(), "\n"), p) {
					t.Errorf("process has ended: %s", p)
				}
			}
			n.logHas("adopted")
			n.apply("new.yaml", pod("new", idle))
			n.waitReady("new")
			for _, f := range []string{"main.yaml", "host.yaml", "new.yaml"} {
				n.remove(f)
			}
			n.requireNoPods()
		})
	}
}

// TestLostAndDamagedRecords loses the records, and damages what one pod has of its own. That pod goes on and is not
// replaced, no other one notices, and it goes when its manifest does.
func TestLostAndDamagedRecords(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.apply("hurt.yaml", pod("hurt", idle))
	hurt := n.waitReady("hurt")
	sandboxes, err := os.ReadDir(filepath.Join(n.Dir, "run/sandboxes"))
	if err != nil || len(sandboxes) != 1 {
		t.Fatalf("sandboxes: %v, %v", sandboxes, err)
	}
	n.apply("well.yaml", pod("well", idle))
	well := n.waitReady("well")
	n.kill()
	err = errors.Join(os.Remove(filepath.Join(n.Dir, "root/runtime.db")), os.Remove(filepath.Join(n.Dir, "run/records")),
		os.WriteFile(filepath.Join(n.Dir, "run/sandboxes", sandboxes[0].Name(), "record"), []byte("nothing of ours"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	n.start()
	n.requireSame(well, n.waitReady("well"))
	n.logHas("record of a sandbox cannot be read", sandboxes[0].Name())
	sleeps := 0
	for _, p := range n.processes() {
		if strings.Contains(p, "sleep") {
			sleeps++
		}
	}
	if sleeps != 2 {
		t.Errorf("%d containers run, want that of %s and that of well: %q", sleeps, hurt.Name, n.processes())
	}
	n.remove("hurt.yaml")
	n.remove("well.yaml")
	n.requireNoPods()
}
