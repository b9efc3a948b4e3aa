package remote

import (
	"context"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The calls are the generated client's without its call options, so that a Runtime can stand where the embedded one
// stands.

// call is a method of a generated client.
type call[Req, Resp any] func(context.Context, *Req, ...grpc.CallOption) (*Resp, error)

// wait makes a call that waits while the runtime is restarted, until ctx ends, instead of failing at once.
func wait[Req, Resp any](ctx context.Context, do call[Req, Resp], req *Req) (*Resp, error) {
	return do(ctx, req, grpc.WaitForReady(true))
}

// change is wait with a call that changes what the lists tell, of which it tells through changed.
func change[Req, Resp any](ctx context.Context, changed chan<- struct{}, do call[Req, Resp], req *Req) (*Resp, error) {
	resp, err := wait(ctx, do, req)
	select {
	case changed <- struct{}{}:
	default:
	}
	return resp, err
}

// startGrace is what a start that nobody waits for any more is given to come to its end.
const startGrace = 10 * time.Second

// whole makes a call that is not cut off in the midst: containerd then leaves a container that it says is being
// started, which cannot be removed for a while, and a shim or a network namespace that nobody ends.
func whole[Req, Resp any](ctx context.Context, changed chan<- struct{}, do call[Req, Resp], req *Req) (*Resp, error) {
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
	return change(longer, changed, do, req)
}

// sandboxes are the calls about sandboxes.
type sandboxes struct {
	client  runtimeapi.RuntimeServiceClient
	changed chan<- struct{}
	tasks   tasks
}

// RunPodSandbox is the CRI's.
func (s sandboxes) RunPodSandbox(
	ctx context.Context, req *runtimeapi.RunPodSandboxRequest,
) (*runtimeapi.RunPodSandboxResponse, error) {
	return whole(ctx, s.changed, s.client.RunPodSandbox, req)
}

// StopPodSandbox is the CRI's.
func (s sandboxes) StopPodSandbox(
	ctx context.Context, req *runtimeapi.StopPodSandboxRequest,
) (*runtimeapi.StopPodSandboxResponse, error) {
	return change(ctx, s.changed, s.client.StopPodSandbox, req)
}

// RemovePodSandbox is the CRI's.
func (s sandboxes) RemovePodSandbox(
	ctx context.Context, req *runtimeapi.RemovePodSandboxRequest,
) (*runtimeapi.RemovePodSandboxResponse, error) {
	return removal(ctx, s.changed, s.tasks, s.client.RemovePodSandbox, req, func() []string {
		id := req.GetPodSandboxId()
		list, err := wait(ctx, s.client.ListContainers,
			&runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{PodSandboxId: id}})
		if err != nil {
			return nil // the next try lists them again
		}
		var ids []string
		for _, c := range list.GetContainers() {
			ids = append(ids, c.GetId())
		}
		return append(ids, id)
	})
}

// PodSandboxStatus is the CRI's.
func (s sandboxes) PodSandboxStatus(
	ctx context.Context, req *runtimeapi.PodSandboxStatusRequest,
) (*runtimeapi.PodSandboxStatusResponse, error) {
	return wait(ctx, s.client.PodSandboxStatus, req)
}

// ListPodSandbox is the CRI's.
func (s sandboxes) ListPodSandbox(
	ctx context.Context, req *runtimeapi.ListPodSandboxRequest,
) (*runtimeapi.ListPodSandboxResponse, error) {
	return wait(ctx, s.client.ListPodSandbox, req)
}

// containers are the calls about containers.
type containers struct {
	client  runtimeapi.RuntimeServiceClient
	changed chan<- struct{}
	tasks   tasks
}

// CreateContainer is the CRI's.
func (c containers) CreateContainer(
	ctx context.Context, req *runtimeapi.CreateContainerRequest,
) (*runtimeapi.CreateContainerResponse, error) {
	return whole(ctx, c.changed, c.client.CreateContainer, req)
}

// StartContainer is the CRI's.
func (c containers) StartContainer(
	ctx context.Context, req *runtimeapi.StartContainerRequest,
) (*runtimeapi.StartContainerResponse, error) {
	return whole(ctx, c.changed, c.client.StartContainer, req)
}

// StopContainer is the CRI's.
func (c containers) StopContainer(
	ctx context.Context, req *runtimeapi.StopContainerRequest,
) (*runtimeapi.StopContainerResponse, error) {
	return change(ctx, c.changed, c.client.StopContainer, req)
}

// RemoveContainer is the CRI's.
func (c containers) RemoveContainer(
	ctx context.Context, req *runtimeapi.RemoveContainerRequest,
) (*runtimeapi.RemoveContainerResponse, error) {
	return removal(ctx, c.changed, c.tasks, c.client.RemoveContainer, req,
		func() []string { return []string{req.GetContainerId()} })
}

// ListContainers is the CRI's.
func (c containers) ListContainers(
	ctx context.Context, req *runtimeapi.ListContainersRequest,
) (*runtimeapi.ListContainersResponse, error) {
	return wait(ctx, c.client.ListContainers, req)
}

// ContainerStatus is the CRI's.
func (c containers) ContainerStatus(
	ctx context.Context, req *runtimeapi.ContainerStatusRequest,
) (*runtimeapi.ContainerStatusResponse, error) {
	return wait(ctx, c.client.ContainerStatus, req)
}

// UpdateContainerResources is the CRI's.
func (c containers) UpdateContainerResources(
	ctx context.Context, req *runtimeapi.UpdateContainerResourcesRequest,
) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	return wait(ctx, c.client.UpdateContainerResources, req)
}

// ReopenContainerLog is the CRI's.
func (c containers) ReopenContainerLog(
	ctx context.Context, req *runtimeapi.ReopenContainerLogRequest,
) (*runtimeapi.ReopenContainerLogResponse, error) {
	return wait(ctx, c.client.ReopenContainerLog, req)
}

// ExecSync is the CRI's. It does not wait for a runtime that is away: a probe would take that for a container which
// does not answer.
func (c containers) ExecSync(
	ctx context.Context, req *runtimeapi.ExecSyncRequest,
) (*runtimeapi.ExecSyncResponse, error) {
	return c.client.ExecSync(ctx, req)
}

// CheckpointContainer is the CRI's.
func (c containers) CheckpointContainer(
	ctx context.Context, req *runtimeapi.CheckpointContainerRequest,
) (*runtimeapi.CheckpointContainerResponse, error) {
	return wait(ctx, c.client.CheckpointContainer, req)
}

// images are the calls about images.
type images struct{ client runtimeapi.ImageServiceClient }

// ImageStatus is the CRI's.
func (i images) ImageStatus(
	ctx context.Context, req *runtimeapi.ImageStatusRequest,
) (*runtimeapi.ImageStatusResponse, error) {
	return wait(ctx, i.client.ImageStatus, req)
}

// PullImage is the CRI's.
func (i images) PullImage(
	ctx context.Context, req *runtimeapi.PullImageRequest,
) (*runtimeapi.PullImageResponse, error) {
	return wait(ctx, i.client.PullImage, req)
}

// ListImages is the CRI's.
func (i images) ListImages(
	ctx context.Context, req *runtimeapi.ListImagesRequest,
) (*runtimeapi.ListImagesResponse, error) {
	return wait(ctx, i.client.ListImages, req)
}

// RemoveImage is the CRI's.
func (i images) RemoveImage(
	ctx context.Context, req *runtimeapi.RemoveImageRequest,
) (*runtimeapi.RemoveImageResponse, error) {
	return wait(ctx, i.client.RemoveImage, req)
}

// ImageFsInfo is the CRI's.
func (i images) ImageFsInfo(
	ctx context.Context, req *runtimeapi.ImageFsInfoRequest,
) (*runtimeapi.ImageFsInfoResponse, error) {
	return wait(ctx, i.client.ImageFsInfo, req)
}

// streams are the calls that return the URL of a stream.
type streams struct {
	client runtimeapi.RuntimeServiceClient
}

// Exec is the CRI's.
func (s streams) Exec(ctx context.Context, req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return wait(ctx, s.client.Exec, req)
}

// Attach is the CRI's.
func (s streams) Attach(
	ctx context.Context, req *runtimeapi.AttachRequest,
) (*runtimeapi.AttachResponse, error) {
	return wait(ctx, s.client.Attach, req)
}

// PortForward is the CRI's.
func (s streams) PortForward(
	ctx context.Context, req *runtimeapi.PortForwardRequest,
) (*runtimeapi.PortForwardResponse, error) {
	return wait(ctx, s.client.PortForward, req)
}

// stats are the calls about what is used.
type stats struct {
	client runtimeapi.RuntimeServiceClient
}

// ContainerStats is the CRI's.
func (s stats) ContainerStats(
	ctx context.Context, req *runtimeapi.ContainerStatsRequest,
) (*runtimeapi.ContainerStatsResponse, error) {
	return wait(ctx, s.client.ContainerStats, req)
}

// ListContainerStats is the CRI's.
func (s stats) ListContainerStats(
	ctx context.Context, req *runtimeapi.ListContainerStatsRequest,
) (*runtimeapi.ListContainerStatsResponse, error) {
	return wait(ctx, s.client.ListContainerStats, req)
}

// PodSandboxStats is the CRI's.
func (s stats) PodSandboxStats(
	ctx context.Context, req *runtimeapi.PodSandboxStatsRequest,
) (*runtimeapi.PodSandboxStatsResponse, error) {
	return wait(ctx, s.client.PodSandboxStats, req)
}

// ListPodSandboxStats is the CRI's.
func (s stats) ListPodSandboxStats(
	ctx context.Context, req *runtimeapi.ListPodSandboxStatsRequest,
) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	return wait(ctx, s.client.ListPodSandboxStats, req)
}

// node is the calls about the runtime itself.
type node struct {
	client runtimeapi.RuntimeServiceClient
}

// Version is the CRI's.
func (n node) Version(
	ctx context.Context, req *runtimeapi.VersionRequest,
) (*runtimeapi.VersionResponse, error) {
	return wait(ctx, n.client.Version, req)
}

// Status is the CRI's.
func (n node) Status(ctx context.Context, req *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	return wait(ctx, n.client.Status, req)
}

// UpdateRuntimeConfig is the CRI's.
func (n node) UpdateRuntimeConfig(
	ctx context.Context, req *runtimeapi.UpdateRuntimeConfigRequest,
) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	return wait(ctx, n.client.UpdateRuntimeConfig, req)
}

// RuntimeConfig is the CRI's.
func (n node) RuntimeConfig(
	ctx context.Context, req *runtimeapi.RuntimeConfigRequest,
) (*runtimeapi.RuntimeConfigResponse, error) {
	return wait(ctx, n.client.RuntimeConfig, req)
}
