package cri

import (
	"testing"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// FuzzRequests takes a pod and a container of any configuration through their lives. Nothing may crash, and nothing be
// left.
func FuzzRequests(f *testing.F) {
	add := func(pod *runtimeapi.PodSandboxConfig, ctr *runtimeapi.ContainerConfig) {
		p, err := proto.Marshal(pod)
		if err != nil {
			f.Fatal(err)
		}
		c, err := proto.Marshal(ctr)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(p, c)
	}
	add(podConfig("a"), containerConfig("c"))
	full := containerConfig("full")
	full.Mounts = []*runtimeapi.Mount{{ContainerPath: "/a", HostPath: "/b", Readonly: true, RecursiveReadOnly: true}, {ContainerPath: "/i", Image: &runtimeapi.ImageSpec{Image: "img"}, Readonly: true}}
	full.Linux.SecurityContext.Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"ALL"}, DropCapabilities: []string{"CHOWN"}}
	full.Linux.SecurityContext.Seccomp = &runtimeapi.SecurityProfile{}
	full.Linux.SecurityContext.RunAsUser = &runtimeapi.Int64Value{Value: 7}
	full.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 1 << 20, Unified: map[string]string{"a": "b"}}
	pod := podConfig("full")
	pod.PortMappings = []*runtimeapi.PortMapping{{HostPort: 80, ContainerPort: 80}}
	pod.DnsConfig = &runtimeapi.DNSConfig{Servers: []string{"1.1.1.1"}}
	pod.Linux.Sysctls = map[string]string{"net.core.somaxconn": "1"}
	add(pod, full)

	w := newWorld()
	s := fakeServer(f, w, f.TempDir())
	f.Cleanup(func() { s.Close() })
	f.Fuzz(func(t *testing.T, rawPod, rawCtr []byte) {
		pod, ctr := &runtimeapi.PodSandboxConfig{}, &runtimeapi.ContainerConfig{}
		if proto.Unmarshal(rawPod, pod) != nil || proto.Unmarshal(rawCtr, ctr) != nil {
			return
		}
		ctx := t.Context()
		p, err := s.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: pod})
		if err != nil {
			return
		}
		if c, err := s.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: p.PodSandboxId, Config: ctr}); err == nil {
			if _, err := s.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: c.ContainerId}); err != nil {
				t.Error(err)
			}
			if _, err := s.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: c.ContainerId, Verbose: true}); err != nil {
				t.Error(err)
			}
			if _, err := s.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: c.ContainerId, Linux: ctr.GetLinux().GetResources()}); err != nil {
				t.Error(err)
			}
		}
		if _, err := s.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.PodSandboxId, Verbose: true}); err != nil {
			t.Error(err)
		}
		if _, err := s.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.PodSandboxId}); err != nil {
			t.Error(err)
		}
		if l := w.left(); len(l) > 0 {
			t.Errorf("left: %q", l)
		}
	})
}
