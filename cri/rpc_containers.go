package cri

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/container"
	"github.com/berth-node/berth/cri/sandbox"
)

// containerCalls are the calls about containers.
type containerCalls struct {
	ctrs *container.Containers
	pods *sandbox.Sandboxes
}

// CreateContainer makes a container in a sandbox.
func (c containerCalls) CreateContainer(ctx context.Context, r *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	return call(ctx, "CreateContainer", func(ctx context.Context) (*runtimeapi.CreateContainerResponse, error) {
		id, err := c.ctrs.Creator.Create(ctx, r.GetPodSandboxId(), r.GetConfig(), r.GetSandboxConfig())
		return &runtimeapi.CreateContainerResponse{ContainerId: id}, err
	})
}

// StartContainer starts a created container.
func (c containerCalls) StartContainer(ctx context.Context, r *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	return call(ctx, "StartContainer", func(ctx context.Context) (*runtimeapi.StartContainerResponse, error) {
		return &runtimeapi.StartContainerResponse{}, c.ctrs.Lifecycle.Start(ctx, r.GetContainerId())
	})
}

// StopContainer stops a container, with a grace period.
func (c containerCalls) StopContainer(ctx context.Context, r *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	return call(ctx, "StopContainer", func(ctx context.Context) (*runtimeapi.StopContainerResponse, error) {
		return &runtimeapi.StopContainerResponse{}, c.ctrs.Stopper.Stop(ctx, r.GetContainerId(), container.Seconds(r.GetTimeout()))
	})
}

// RemoveContainer removes a container, killing it first.
func (c containerCalls) RemoveContainer(ctx context.Context, r *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	return call(ctx, "RemoveContainer", func(ctx context.Context) (*runtimeapi.RemoveContainerResponse, error) {
		return &runtimeapi.RemoveContainerResponse{}, c.ctrs.Stopper.Remove(ctx, r.GetContainerId())
	})
}

// ListContainers lists containers, the newest first.
func (c containerCalls) ListContainers(_ context.Context, r *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: c.ctrs.Table.List(r.GetFilter())}, nil
}

// ContainerStatus returns the status of a container.
func (c containerCalls) ContainerStatus(ctx context.Context, r *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	return call(ctx, "ContainerStatus", func(context.Context) (*runtimeapi.ContainerStatusResponse, error) { return c.ctrs.Table.Status(r) })
}

// UpdateContainerResources changes the limits of a container.
func (c containerCalls) UpdateContainerResources(ctx context.Context, r *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	return call(ctx, "UpdateContainerResources", func(ctx context.Context) (*runtimeapi.UpdateContainerResourcesResponse, error) {
		return &runtimeapi.UpdateContainerResourcesResponse{}, c.ctrs.Updater.UpdateResources(ctx, r)
	})
}

// StreamContainers streams the list of containers.
func (c containerCalls) StreamContainers(r *runtimeapi.StreamContainersRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamContainersResponse]) error {
	return send(stream, c.ctrs.Table.List(r.GetFilter()), func(p []*runtimeapi.Container) *runtimeapi.StreamContainersResponse {
		return &runtimeapi.StreamContainersResponse{Containers: p}
	})
}

// ReopenContainerLog makes the keeper open the log again, after somebody has moved it away.
func (c containerCalls) ReopenContainerLog(ctx context.Context, r *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	return call(ctx, "ReopenContainerLog", func(context.Context) (*runtimeapi.ReopenContainerLogResponse, error) {
		ctr, k, err := c.ctrs.Table.Running(r.GetContainerId())
		if err != nil {
			return nil, err
		}
		if err := c.pods.Watcher.Heard(ctr.Sandbox, k.ReopenLog(ctr.ID)); err != nil {
			return nil, fmt.Errorf("reopen log: %w", err)
		}
		return &runtimeapi.ReopenContainerLogResponse{}, nil
	})
}
