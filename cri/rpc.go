package cri

import (
	"context"
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cri/answer"
	"github.com/berth-node/berth/cri/container"
	"github.com/berth-node/berth/cri/oci"
	"github.com/berth-node/berth/cri/step"
)

// The methods of the CRI. What all have in common is here: the span, and the code an error has for clients.

func call[T any](ctx context.Context, name string, f func(context.Context) (T, error)) (T, error) {
	ctx, span := step.Tracer(ctx).Start(ctx, name)
	defer span.End()
	v, err := f(ctx)
	if err != nil {
		var none T
		span.RecordError(err)
		return none, asStatus(err)
	}
	return v, nil
}

// Version says which runtime this is.
func (s *Server) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{
		Version: "0.1.0", RuntimeName: "berth", RuntimeVersion: runtimeVersion, RuntimeApiVersion: "v1",
	}, nil
}

const runtimeVersion = "0.1.0"

// RunPodSandbox makes and starts a sandbox.
func (s *Server) RunPodSandbox(ctx context.Context, r *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	return call(ctx, "RunPodSandbox", func(ctx context.Context) (*runtimeapi.RunPodSandboxResponse, error) {
		id, err := s.core.pods.Run(ctx, r.GetConfig(), r.GetRuntimeHandler())
		return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, err
	})
}

// StopPodSandbox kills the sandbox's containers and takes it down.
func (s *Server) StopPodSandbox(ctx context.Context, r *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	return call(ctx, "StopPodSandbox", func(ctx context.Context) (*runtimeapi.StopPodSandboxResponse, error) {
		return &runtimeapi.StopPodSandboxResponse{}, s.core.pods.Stop(ctx, r.GetPodSandboxId())
	})
}

// RemovePodSandbox removes a sandbox and its containers, stopping them first.
func (s *Server) RemovePodSandbox(ctx context.Context, r *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	return call(ctx, "RemovePodSandbox", func(ctx context.Context) (*runtimeapi.RemovePodSandboxResponse, error) {
		return &runtimeapi.RemovePodSandboxResponse{}, s.core.pods.Remove(ctx, r.GetPodSandboxId())
	})
}

// PodSandboxStatus returns the status of a sandbox and its containers.
func (s *Server) PodSandboxStatus(ctx context.Context, r *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	return call(ctx, "PodSandboxStatus", func(context.Context) (*runtimeapi.PodSandboxStatusResponse, error) {
		return s.core.pods.Table.Status(r)
	})
}

// ListPodSandbox lists sandboxes, the newest first.
func (s *Server) ListPodSandbox(_ context.Context, r *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{Items: s.core.pods.Table.List(r.GetFilter())}, nil
}

// CreateContainer makes a container in a sandbox.
func (s *Server) CreateContainer(ctx context.Context, r *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	return call(ctx, "CreateContainer", func(ctx context.Context) (*runtimeapi.CreateContainerResponse, error) {
		id, err := s.core.ctrs.Creator.Create(ctx, r.GetPodSandboxId(), r.GetConfig(), r.GetSandboxConfig())
		return &runtimeapi.CreateContainerResponse{ContainerId: id}, err
	})
}

// StartContainer starts a created container.
func (s *Server) StartContainer(ctx context.Context, r *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	return call(ctx, "StartContainer", func(ctx context.Context) (*runtimeapi.StartContainerResponse, error) {
		return &runtimeapi.StartContainerResponse{}, s.core.ctrs.Lifecycle.Start(ctx, r.GetContainerId())
	})
}

// StopContainer stops a container, with a grace period.
func (s *Server) StopContainer(ctx context.Context, r *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	return call(ctx, "StopContainer", func(ctx context.Context) (*runtimeapi.StopContainerResponse, error) {
		return &runtimeapi.StopContainerResponse{}, s.core.ctrs.Stopper.Stop(ctx, r.GetContainerId(), container.Seconds(r.GetTimeout()))
	})
}

// RemoveContainer removes a container, killing it first.
func (s *Server) RemoveContainer(ctx context.Context, r *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	return call(ctx, "RemoveContainer", func(ctx context.Context) (*runtimeapi.RemoveContainerResponse, error) {
		return &runtimeapi.RemoveContainerResponse{}, s.core.ctrs.Stopper.Remove(ctx, r.GetContainerId())
	})
}

// ListContainers lists containers, the newest first.
func (s *Server) ListContainers(_ context.Context, r *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: s.core.ctrs.Table.List(r.GetFilter())}, nil
}

// ContainerStatus returns the status of a container.
func (s *Server) ContainerStatus(ctx context.Context, r *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	return call(ctx, "ContainerStatus", func(context.Context) (*runtimeapi.ContainerStatusResponse, error) { return s.core.ctrs.Table.Status(r) })
}

// UpdateContainerResources changes the limits of a container.
func (s *Server) UpdateContainerResources(ctx context.Context, r *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	return call(ctx, "UpdateContainerResources", func(ctx context.Context) (*runtimeapi.UpdateContainerResourcesResponse, error) {
		return &runtimeapi.UpdateContainerResourcesResponse{}, s.core.ctrs.Updater.UpdateResources(ctx, r)
	})
}

// UpdatePodSandboxResources takes note of the resources of a whole pod. Its cgroup, the sandbox's parent, is the
// client's.
func (s *Server) UpdatePodSandboxResources(ctx context.Context, r *runtimeapi.UpdatePodSandboxResourcesRequest) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	return call(ctx, "UpdatePodSandboxResources", func(ctx context.Context) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
		return &runtimeapi.UpdatePodSandboxResourcesResponse{}, s.core.pods.UpdateResources(ctx, r)
	})
}

// reopenLog makes the keeper open the log again, after somebody has moved it away.
func (co *core) reopenLog(ctx context.Context, r *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	return call(ctx, "ReopenContainerLog", func(context.Context) (*runtimeapi.ReopenContainerLogResponse, error) {
		c, k, err := co.ctrs.Table.Running(r.GetContainerId())
		if err != nil {
			return nil, err
		}
		if err := co.pods.Watcher.Heard(c.Sandbox, k.ReopenLog(c.ID)); err != nil {
			return nil, fmt.Errorf("reopen log: %w", err)
		}
		return &runtimeapi.ReopenContainerLogResponse{}, nil
	})
}

// Events calls fn with every container event, in order, until ctx ends. A subscriber that is too far behind is let go
// with an error, and has to list everything again.
func (s *Server) Events(ctx context.Context, fn func(*runtimeapi.ContainerEventResponse)) error {
	return s.core.hub.Subscribe(ctx, func(e *runtimeapi.ContainerEventResponse) error {
		fn(e)
		return nil
	})
}

// GetContainerEvents is Events for clients on a socket.
func (s *Server) GetContainerEvents(_ *runtimeapi.GetEventsRequest, stream runtimeapi.RuntimeService_GetContainerEventsServer) error {
	return asStatus(s.core.hub.Subscribe(stream.Context(), stream.Send))
}

// UpdateRuntimeConfig takes note of nothing: the network's addresses are a flag of the server.
func (s *Server) UpdateRuntimeConfig(context.Context, *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}

// runtimeConfig says which cgroup driver is in use.
func (co *core) runtimeConfig(context.Context, *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	driver := runtimeapi.CgroupDriver_CGROUPFS
	if co.cfg.CgroupDriver == cgroups.DriverSystemd {
		driver = runtimeapi.CgroupDriver_SYSTEMD
	}
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: driver}}, nil
}

// status says whether sandboxes can be run.
func (co *core) status(ctx context.Context, r *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	network := &runtimeapi.RuntimeCondition{Type: runtimeapi.NetworkReady, Status: true}
	if err := co.host.Net.Status(); err != nil {
		network.Status, network.Reason, network.Message = false, "NetworkPluginNotReady", err.Error()
	}
	ready := &runtimeapi.RuntimeCondition{Type: runtimeapi.RuntimeReady, Status: true}
	if err := co.db.Trouble(); err != nil {
		ready.Status, ready.Reason = false, "RecordsNotWritable"
		ready.Message = fmt.Sprintf("what runs goes on, but nothing new can be begun: write %s: %v", co.host.Paths.DB(), err)
	}
	out := &runtimeapi.StatusResponse{
		Status:          &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{ready, network}},
		RuntimeHandlers: co.host.RuntimeHandlers(ctx),
		Features:        &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true, MountOptions: true},
	}
	if !r.GetVerbose() {
		return out, nil
	}
	var err error
	out.Info, err = answer.Verbose(map[string]any{
		"root": co.cfg.RootDir, "run": co.cfg.RunDir, "snapshotter": co.host.Snaps.Name(), "podCIDR": co.cfg.PodCIDR, "bridge": co.cfg.BridgeName,
		"appArmor":    co.appArmor(ctx),
		"unreadable":  co.pods.Quarantine.Told(),
		"lostRecords": co.db.Lost(),
		"adopted":     co.adopted,
	})
	return out, asStatus(err)
}

// appArmor says what the profile RuntimeDefault means here.
func (r *core) appArmor(ctx context.Context) string {
	if !r.host.Host.AppArmor {
		return "not in this kernel"
	}
	if err := r.host.Armor.Ensure(ctx); err != nil {
		return err.Error()
	}
	return oci.AppArmorDefault
}
