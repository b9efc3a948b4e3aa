package cri

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-node/berth/cri/host"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// cdiSpec describes a device that is /dev/zero under another name, and all else that such a description can have.
const cdiSpec = `{"cdiVersion": "0.6.0", "kind": "berth.test/gadget",
  "containerEdits": {"env": ["GADGETS=yes"]},
  "devices": [{"name": "one", "containerEdits": {
    "env": ["GADGET=one"],
    "deviceNodes": [{"path": "/dev/gadget", "hostPath": "/dev/zero", "permissions": "rw"}],
    "mounts": [{"hostPath": %q, "containerPath": "/gadget", "options": ["ro", "bind"]}],
    "hooks": [
      {"hookName": "createRuntime", "path": "/bin/sh", "args": ["sh", "-c", "cat > %[1]s/created"]},
      {"hookName": "poststop", "path": "/bin/sh", "args": ["sh", "-c", "cat > %[1]s/stopped"]}]}}]}`

func TestCDIDevice(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("of the gadget"), 0o600); err != nil {
		t.Fatal(err)
	}
	specDir := t.TempDir()
	n.core.host.CDI.Dirs = []string{filepath.Join(specDir, "none"), specDir}
	if err := os.WriteFile(filepath.Join(specDir, "gadget.json"), fmt.Appendf(nil, cdiSpec, dir), 0o600); err != nil {
		t.Fatal(err)
	}
	pod, _ := n.pod(t, "a", nil)
	id := n.run(t, pod, "field", func(c *runtimeapi.ContainerConfig) {
		c.CDIDevices = []*runtimeapi.CDIDevice{{Name: "berth.test/gadget=one"}}
		c.Annotations = map[string]string{"cdi.k8s.io/test": "berth.test/gadget=one"} // as kubelet does, asking twice
	}, "sleep", "1000")
	if got := n.sh(t, id, "head -c 4 /dev/gadget | stat -c %F /dev/gadget; cat /gadget/file; echo /$GADGET/$GADGETS"); got != "character special file\nof the gadget/one/yes" {
		t.Errorf("got %q", got)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "created")); err != nil || !strings.Contains(string(b), id) {
		t.Errorf("hook at the creation: got %s, %v", b, err)
	}
	if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "stopped")); err != nil || !strings.Contains(string(b), `"status":"stopped"`) {
		t.Errorf("hook after the end: got %s, %v", b, err)
	}
	id = n.run(t, pod, "annotation", func(c *runtimeapi.ContainerConfig) {
		c.Annotations = map[string]string{"cdi.k8s.io/test": "berth.test/gadget=one"}
	}, "sleep", "1000")
	if got := n.sh(t, id, "echo $GADGET"); got != "one" {
		t.Errorf("by annotation: got %q", got)
	}
	for name, change := range map[string]func(*runtimeapi.ContainerConfig){
		"berth.test/gadget=two": func(c *runtimeapi.ContainerConfig) {
			c.CDIDevices = []*runtimeapi.CDIDevice{{Name: "berth.test/gadget=two"}}
		},
		"no-name": func(c *runtimeapi.ContainerConfig) { c.CDIDevices = []*runtimeapi.CDIDevice{{Name: "no-name"}} },
		"nor-one": func(c *runtimeapi.ContainerConfig) { c.Annotations = map[string]string{"cdi.k8s.io/x": "nor-one"} },
	} {
		if _, err := n.tryRun(pod, "refused", change, "true"); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestCDIWithoutDirectories(t *testing.T) {
	if err := (*host.CDI)(nil).Inject(&specs.Spec{}, nil); err != nil {
		t.Error(err)
	}
	if err := (&host.CDI{}).Inject(&specs.Spec{}, []string{"a/b=c"}); err == nil {
		t.Error("a device from nowhere")
	}
}
