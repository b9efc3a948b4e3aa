package conformance

import (
	"testing"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func unknownIDs(t *testing.T, s *suite) {
	const id = "f000000000000000000000000000000000000000000000000000000000000000"
	ctx := t.Context()
	for what, call := range map[string]func() error{
		"PodSandboxStatus": func() error {
			_, err := s.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
			return err
		},
		"StartContainer": func() error {
			_, err := s.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
			return err
		},
		"ContainerStatus": func() error {
			_, err := s.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
			return err
		},
		"UpdateContainerResources": func() error {
			_, err := s.UpdateContainerResources(ctx,
				&runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{}})
			return err
		},
		"ReopenContainerLog": func() error {
			_, err := s.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: id})
			return err
		},
		"ExecSync": func() error {
			_, err := s.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"true"}})
			return err
		},
		"Exec": func() error {
			_, err := s.Exec(ctx, &runtimeapi.ExecRequest{ContainerId: id, Cmd: []string{"true"}, Stdout: true})
			return err
		},
		"Attach": func() error {
			_, err := s.Attach(ctx, &runtimeapi.AttachRequest{ContainerId: id, Stdout: true})
			return err
		},
		"PortForward": func() error {
			_, err := s.PortForward(ctx, &runtimeapi.PortForwardRequest{PodSandboxId: id})
			return err
		},
		"ContainerStats": func() error {
			_, err := s.ContainerStats(ctx, &runtimeapi.ContainerStatsRequest{ContainerId: id})
			return err
		},
		"PodSandboxStats": func() error {
			_, err := s.PodSandboxStats(ctx, &runtimeapi.PodSandboxStatsRequest{PodSandboxId: id})
			return err
		},
		"CreateContainer": func() error {
			p := &sandbox{suite: s, t: t, id: id, cfg: s.config(t)}
			_, err := p.create(p.container("main", "true"))
			return err
		},
	} {
		if err := call(); err == nil {
			t.Errorf("%s: no error", what)
		} else if !s.lacks(t, "NotFound") {
			wantCode(t, what, err, codes.NotFound)
		}
	}
	for what, call := range map[string]func() error{
		"StopPodSandbox": func() error {
			_, err := s.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
			return err
		},
		"RemovePodSandbox": func() error {
			_, err := s.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
			return err
		},
		"StopContainer": func() error {
			_, err := s.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id})
			return err
		},
		"RemoveContainer": func() error {
			_, err := s.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})
			return err
		},
	} {
		if err := call(); err != nil && !s.lacks(t, what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if l, err := s.ListContainers(ctx,
		&runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{Id: id}}); err != nil ||
		len(l.GetContainers()) > 0 {
		t.Errorf("list of an unknown container: %v, %v", l, err)
	}
}
