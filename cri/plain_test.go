package cri

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/host"
)

// TestOrdinaryContainers: a pod's containers are started without libcontainer, which keeps a directory for each that it
// starts. Of a seccomp profile it starts the first.
func TestOrdinaryContainers(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	confined := func(c *runtimeapi.ContainerConfig) {
		sc := c.GetLinux().GetSecurityContext()
		sc.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
		sc.ReadonlyRootfs = true
	}
	device := func(c *runtimeapi.ContainerConfig) {
		c.Devices = []*runtimeapi.Device{{HostPath: "/dev/zero", ContainerPath: "/dev/own", Permissions: "r"}}
	}
	for _, c := range []struct {
		name   string
		change func(*runtimeapi.ContainerConfig)
		plain  bool
	}{{"first", nil, true}, {"confined", confined, false}, {"again", confined, true}, {"with a device", device, false}} {
		id := n.run(t, pod, c.name, c.change, "sleep", "1000")
		_, err := os.Stat(filepath.Join(host.Layout{Root: n.cfg.RootDir, Run: n.cfg.RunDir}.State(), id))
		if errors.Is(err, fs.ErrNotExist) != c.plain {
			t.Errorf("%s is started by libcontainer: %t", c.name, err == nil)
		}
	}
}
