package cri

import (
	"context"
	"fmt"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cri/oci"
)

// The methods of the CRI. What all have in common is here: the span, and the code an error has for clients.

func call[T any](ctx context.Context, name string, f func(context.Context) (T, error)) (T, error) {
	ctx, span := tracer(ctx).Start(ctx, name)
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
		id, err := s.pods.run(ctx, r.GetConfig(), r.GetRuntimeHandler())
		return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, err
	})
}

// StopPodSandbox kills the sandbox's containers and takes it down.
func (s *Server) StopPodSandbox(ctx context.Context, r *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	return call(ctx, "StopPodSandbox", func(ctx context.Context) (*runtimeapi.StopPodSandboxResponse, error) {
		return &runtimeapi.StopPodSandboxResponse{}, s.pods.stop(ctx, r.GetPodSandboxId())
	})
}

// RemovePodSandbox removes a sandbox and its containers, stopping them first.
func (s *Server) RemovePodSandbox(ctx context.Context, r *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	return call(ctx, "RemovePodSandbox", func(ctx context.Context) (*runtimeapi.RemovePodSandboxResponse, error) {
		return &runtimeapi.RemovePodSandboxResponse{}, s.pods.remove(ctx, r.GetPodSandboxId())
	})
}

// PodSandboxStatus returns the status of a sandbox and its containers.
func (s *Server) PodSandboxStatus(ctx context.Context, r *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	return call(ctx, "PodSandboxStatus", func(context.Context) (*runtimeapi.PodSandboxStatusResponse, error) { return s.pods.status(r) })
}

// ListPodSandbox lists sandboxes, the newest first.
func (s *Server) ListPodSandbox(_ context.Context, r *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{Items: s.pods.list(r.GetFilter())}, nil
}

// CreateContainer makes a container in a sandbox.
func (s *Server) CreateContainer(ctx context.Context, r *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	return call(ctx, "CreateContainer", func(ctx context.Context) (*runtimeapi.CreateContainerResponse, error) {
		id, err := s.ctrs.create(ctx, r.GetPodSandboxId(), r.GetConfig(), r.GetSandboxConfig())
		return &runtimeapi.CreateContainerResponse{ContainerId: id}, err
	})
}

// StartContainer starts a created container.
func (s *Server) StartContainer(ctx context.Context, r *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	return call(ctx, "StartContainer", func(ctx context.Context) (*runtimeapi.StartContainerResponse, error) {
		return &runtimeapi.StartContainerResponse{}, s.ctrs.start(ctx, r.GetContainerId())
	})
}

// StopContainer stops a container, with a grace period.
func (s *Server) StopContainer(ctx context.Context, r *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	return call(ctx, "StopContainer", func(ctx context.Context) (*runtimeapi.StopContainerResponse, error) {
		return &runtimeapi.StopContainerResponse{}, s.ctrs.stop(ctx, r.GetContainerId(), seconds(r.GetTimeout()))
	})
}

// seconds keeps a timeout that a client meant as "for ever" from overflowing.
func seconds(n int64) time.Duration {
	return time.Duration(min(max(n, 0), int64(365*24*time.Hour/time.Second))) * time.Second
}

// RemoveContainer removes a container, killing it first.
func (s *Server) RemoveContainer(ctx context.Context, r *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	return call(ctx, "RemoveContainer", func(ctx context.Context) (*runtimeapi.RemoveContainerResponse, error) {
		return &runtimeapi.RemoveContainerResponse{}, s.ctrs.remove(ctx, r.GetContainerId())
	})
}

// ListContainers lists containers, the newest first.
func (s *Server) ListContainers(_ context.Context, r *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: s.ctrs.list(r.GetFilter())}, nil
}

// ContainerStatus returns the status of a container.
func (s *Server) ContainerStatus(ctx context.Context, r *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	return call(ctx, "ContainerStatus", func(context.Context) (*runtimeapi.ContainerStatusResponse, error) { return s.ctrs.status(r) })
}

// UpdateContainerResources changes the limits of a container.
func (s *Server) UpdateContainerResources(ctx context.Context, r *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	return call(ctx, "UpdateContainerResources", func(ctx context.Context) (*runtimeapi.UpdateContainerResourcesResponse, error) {
		return &runtimeapi.UpdateContainerResourcesResponse{}, s.ctrs.updateResources(ctx, r)
	})
}

// UpdatePodSandboxResources takes note of the resources of a whole pod. Its cgroup, the sandbox's parent, is the client's.
func (s *Server) UpdatePodSandboxResources(ctx context.Context, r *runtimeapi.UpdatePodSandboxResourcesRequest) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	return call(ctx, "UpdatePodSandboxResources", func(ctx context.Context) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
		return &runtimeapi.UpdatePodSandboxResourcesResponse{}, s.pods.updateResources(ctx, r)
	})
}

// ReopenContainerLog makes the keeper open the log anew, after somebody has moved it away.
func (s *Server) ReopenContainerLog(ctx context.Context, r *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	return call(ctx, "ReopenContainerLog", func(context.Context) (*runtimeapi.ReopenContainerLogResponse, error) {
		c, k, err := s.ctrs.running(r.GetContainerId())
		if err != nil {
			return nil, err
		}
		if err := s.pods.heard(c.sandbox, k.ReopenLog(c.id)); err != nil {
			return nil, fmt.Errorf("reopen log: %w", err)
		}
		return &runtimeapi.ReopenContainerLogResponse{}, nil
	})
}

// Events calls fn with every container event, in order, until ctx ends. A subscriber that is too far behind is let go with an
// error, and has to list everything anew.
func (s *Server) Events(ctx context.Context, fn func(*runtimeapi.ContainerEventResponse)) error {
	return s.hub.subscribe(ctx, func(e *runtimeapi.ContainerEventResponse) error {
		fn(e)
		return nil
	})
}

// GetContainerEvents is Events for clients on a socket.
func (s *Server) GetContainerEvents(_ *runtimeapi.GetEventsRequest, stream runtimeapi.RuntimeService_GetContainerEventsServer) error {
	return asStatus(s.hub.subscribe(stream.Context(), stream.Send))
}

// UpdateRuntimeConfig takes note of nothing: the network's addresses are a flag of the server.
func (s *Server) UpdateRuntimeConfig(context.Context, *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}

// RuntimeConfig says which cgroup driver is in use.
func (s *Server) RuntimeConfig(context.Context, *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	driver := runtimeapi.CgroupDriver_CGROUPFS
	if s.cfg.CgroupDriver == cgroups.DriverSystemd {
		driver = runtimeapi.CgroupDriver_SYSTEMD
	}
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: driver}}, nil
}

// Status says whether sandboxes can be run.
func (s *Server) Status(ctx context.Context, r *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	network := &runtimeapi.RuntimeCondition{Type: runtimeapi.NetworkReady, Status: true}
	if err := s.machine.net.Status(); err != nil {
		network.Status, network.Reason, network.Message = false, "NetworkPluginNotReady", err.Error()
	}
	ready := &runtimeapi.RuntimeCondition{Type: runtimeapi.RuntimeReady, Status: true}
	if err := s.db.Trouble(); err != nil {
		ready.Status, ready.Reason = false, "RecordsNotWritable"
		ready.Message = fmt.Sprintf("what runs goes on, but nothing new can be begun: write %s: %v", s.machine.paths.db(), err)
	}
	out := &runtimeapi.StatusResponse{
		Status:          &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{ready, network}},
		RuntimeHandlers: s.machine.runtimeHandlers(ctx),
		Features:        &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true, MountOptions: true},
	}
	if !r.GetVerbose() {
		return out, nil
	}
	var err error
	out.Info, err = verbose(map[string]any{
		"root": s.cfg.RootDir, "run": s.cfg.RunDir, "snapshotter": s.machine.snaps.Name(), "podCIDR": s.cfg.PodCIDR, "bridge": s.cfg.BridgeName,
		"appArmor":    s.appArmor(ctx),
		"unreadable":  s.pods.unreadable.told(),
		"lostRecords": s.db.Lost(),
		"adopted":     s.adopted,
	})
	return out, asStatus(err)
}

// appArmor says what the profile RuntimeDefault means here.
func (s *Server) appArmor(ctx context.Context) string {
	if !s.machine.host.AppArmor {
		return "not in this kernel"
	}
	if err := s.machine.armor.Ensure(ctx); err != nil {
		return err.Error()
	}
	return oci.AppArmorDefault
}
