package remote

import (
	"context"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The calls are the generated client's without its call options, so that a Runtime can stand where the embedded one stands.

// call is a method of a generated client.
type call[Req, Resp any] func(context.Context, *Req, ...grpc.CallOption) (*Resp, error)

// wait makes a call that waits while the runtime is restarted, until ctx ends, instead of failing at once.
func wait[Req, Resp any](ctx context.Context, do call[Req, Resp], req *Req) (*Resp, error) {
	return do(ctx, req, grpc.WaitForReady(true))
}

// change is wait with a call that changes what the lists tell.
func change[Req, Resp any](ctx context.Context, r *Runtime, do call[Req, Resp], req *Req) (*Resp, error) {
	resp, err := wait(ctx, do, req)
	select {
	case r.changed <- struct{}{}:
	default:
	}
	return resp, err
}

// startGrace is what a start that nobody waits for any more is given to come to its end.
const startGrace = 10 * time.Second

// whole makes a call that is not cut off in the midst: containerd then leaves a container that it says is being started, which cannot
// be removed for a while, and a shim or a network namespace that nobody ends.
func whole[Req, Resp any](ctx context.Context, r *Runtime, do call[Req, Resp], req *Req) (*Resp, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(startGrace, cancel)
		<-longer.Done()
		timer.Stop()
	})()
	return change(longer, r, do, req)
}

// Version is the CRI's.
func (r *Runtime) Version(ctx context.Context, req *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return wait(ctx, r.runtime.Version, req)
}

// Status is the CRI's.
func (r *Runtime) Status(ctx context.Context, req *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	return wait(ctx, r.runtime.Status, req)
}

// UpdateRuntimeConfig is the CRI's.
func (r *Runtime) UpdateRuntimeConfig(ctx context.Context, req *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	return wait(ctx, r.runtime.UpdateRuntimeConfig, req)
}

// RuntimeConfig is the CRI's.
func (r *Runtime) RuntimeConfig(ctx context.Context, req *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	return wait(ctx, r.runtime.RuntimeConfig, req)
}

// RunPodSandbox is the CRI's.
func (r *Runtime) RunPodSandbox(ctx context.Context, req *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	return whole(ctx, r, r.runtime.RunPodSandbox, req)
}

// StopPodSandbox is the CRI's.
func (r *Runtime) StopPodSandbox(ctx context.Context, req *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	return change(ctx, r, r.runtime.StopPodSandbox, req)
}

// RemovePodSandbox is the CRI's.
func (r *Runtime) RemovePodSandbox(ctx context.Context, req *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	return change(ctx, r, r.runtime.RemovePodSandbox, req)
}

// PodSandboxStatus is the CRI's.
func (r *Runtime) PodSandboxStatus(ctx context.Context, req *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	return wait(ctx, r.runtime.PodSandboxStatus, req)
}

// ListPodSandbox is the CRI's.
func (r *Runtime) ListPodSandbox(ctx context.Context, req *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return wait(ctx, r.runtime.ListPodSandbox, req)
}

// CreateContainer is the CRI's.
func (r *Runtime) CreateContainer(ctx context.Context, req *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	return whole(ctx, r, r.runtime.CreateContainer, req)
}

// StartContainer is the CRI's.
func (r *Runtime) StartContainer(ctx context.Context, req *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	return whole(ctx, r, r.runtime.StartContainer, req)
}

// StopContainer is the CRI's.
func (r *Runtime) StopContainer(ctx context.Context, req *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	return change(ctx, r, r.runtime.StopContainer, req)
}

// RemoveContainer is the CRI's.
func (r *Runtime) RemoveContainer(ctx context.Context, req *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	return change(ctx, r, r.runtime.RemoveContainer, req)
}

// ListContainers is the CRI's.
func (r *Runtime) ListContainers(ctx context.Context, req *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return wait(ctx, r.runtime.ListContainers, req)
}

// ContainerStatus is the CRI's.
func (r *Runtime) ContainerStatus(ctx context.Context, req *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	return wait(ctx, r.runtime.ContainerStatus, req)
}

// UpdateContainerResources is the CRI's.
func (r *Runtime) UpdateContainerResources(ctx context.Context, req *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	return wait(ctx, r.runtime.UpdateContainerResources, req)
}

// ReopenContainerLog is the CRI's.
func (r *Runtime) ReopenContainerLog(ctx context.Context, req *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	return wait(ctx, r.runtime.ReopenContainerLog, req)
}

// ExecSync is the CRI's. It does not wait for a runtime that is away: a probe would take that for a container which does not answer.
func (r *Runtime) ExecSync(ctx context.Context, req *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	return r.runtime.ExecSync(ctx, req)
}

// CheckpointContainer is the CRI's.
func (r *Runtime) CheckpointContainer(ctx context.Context, req *runtimeapi.CheckpointContainerRequest) (*runtimeapi.CheckpointContainerResponse, error) {
	return wait(ctx, r.runtime.CheckpointContainer, req)
}

// Exec is the CRI's.
func (r *Runtime) Exec(ctx context.Context, req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return wait(ctx, r.runtime.Exec, req)
}

// Attach is the CRI's.
func (r *Runtime) Attach(ctx context.Context, req *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return wait(ctx, r.runtime.Attach, req)
}

// PortForward is the CRI's.
func (r *Runtime) PortForward(ctx context.Context, req *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return wait(ctx, r.runtime.PortForward, req)
}

// ContainerStats is the CRI's.
func (r *Runtime) ContainerStats(ctx context.Context, req *runtimeapi.ContainerStatsRequest) (*runtimeapi.ContainerStatsResponse, error) {
	return wait(ctx, r.runtime.ContainerStats, req)
}

// ListContainerStats is the CRI's.
func (r *Runtime) ListContainerStats(ctx context.Context, req *runtimeapi.ListContainerStatsRequest) (*runtimeapi.ListContainerStatsResponse, error) {
	return wait(ctx, r.runtime.ListContainerStats, req)
}

// PodSandboxStats is the CRI's.
func (r *Runtime) PodSandboxStats(ctx context.Context, req *runtimeapi.PodSandboxStatsRequest) (*runtimeapi.PodSandboxStatsResponse, error) {
	return wait(ctx, r.runtime.PodSandboxStats, req)
}

// ListPodSandboxStats is the CRI's.
func (r *Runtime) ListPodSandboxStats(ctx context.Context, req *runtimeapi.ListPodSandboxStatsRequest) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	return wait(ctx, r.runtime.ListPodSandboxStats, req)
}

// ImageStatus is the CRI's.
func (r *Runtime) ImageStatus(ctx context.Context, req *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	return wait(ctx, r.images.ImageStatus, req)
}

// PullImage is the CRI's.
func (r *Runtime) PullImage(ctx context.Context, req *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	return wait(ctx, r.images.PullImage, req)
}

// ListImages is the CRI's.
func (r *Runtime) ListImages(ctx context.Context, req *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	return wait(ctx, r.images.ListImages, req)
}

// RemoveImage is the CRI's.
func (r *Runtime) RemoveImage(ctx context.Context, req *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	return wait(ctx, r.images.RemoveImage, req)
}

// ImageFsInfo is the CRI's.
func (r *Runtime) ImageFsInfo(ctx context.Context, req *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	return wait(ctx, r.images.ImageFsInfo, req)
}
