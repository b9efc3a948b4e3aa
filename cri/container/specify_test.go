package container

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/berth-node/berth/cri/host"
	"github.com/berth-node/berth/cri/oci"
	"github.com/berth-node/berth/cri/sandbox"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestLabelsWithoutSELinux: charts ask for labels everywhere, so this is said once and not for each container.
func TestLabelsWithoutSELinux(t *testing.T) {
	var said bytes.Buffer
	spec := &specifier{host: &host.Host{Log: slog.New(slog.NewTextHandler(&said, nil))}}
	for _, o := range []*runtimeapi.SELinuxOption{nil, {}, {Level: "s0"}, {User: "u", Role: "r", Type: "t"}} {
		cfg := &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "main"},
			Linux:    &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{SelinuxOptions: o}},
		}
		c := newContainer(Record{ID: "id"}, cfg, &sandbox.Sandbox{Config: &runtimeapi.PodSandboxConfig{}})
		spec.warn(c, oci.Input{Container: cfg, Sandbox: c.Sandbox.Config})
	}
	if n := strings.Count(said.String(), "SELinux options are ignored"); n != 1 {
		t.Errorf("said %d times: %s", n, said.String())
	}
}
