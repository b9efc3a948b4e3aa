package intercept

import (
	"context"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod"
)

// runtime has every call go through an interceptor.
type runtime struct {
	pod.Runtime
	around Interceptor
}

// Runtime has the interceptors around every call of a runtime, the first one outermost. Events are no call.
func Runtime(r pod.Runtime, around ...Interceptor) pod.Runtime {
	return runtime{r, chain(around)}
}

// through makes one call.
func through[Q proto.Message, S any](ctx context.Context, r runtime, operation string, do func(context.Context, Q) (S, error), req Q) (S, error) {
	var resp S
	err := r.around(ctx, Call{Operation: operation, Request: req}, func() (err error) {
		resp, err = do(ctx, req)
		return err
	})
	return resp, err
}

// RunPodSandbox implements [pod.Runtime].
func (r runtime) RunPodSandbox(ctx context.Context, req *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	return through(ctx, r, "run_podsandbox", r.Runtime.RunPodSandbox, req)
}

// StopPodSandbox implements [pod.Runtime].
func (r runtime) StopPodSandbox(ctx context.Context, req *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	return through(ctx, r, "stop_podsandbox", r.Runtime.StopPodSandbox, req)
}

// RemovePodSandbox implements [pod.Runtime].
func (r runtime) RemovePodSandbox(ctx context.Context, req *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	return through(ctx, r, "remove_podsandbox", r.Runtime.RemovePodSandbox, req)
}

// PodSandboxStatus implements [pod.Runtime].
func (r runtime) PodSandboxStatus(ctx context.Context, req *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	return through(ctx, r, "podsandbox_status", r.Runtime.PodSandboxStatus, req)
}

// ListPodSandbox implements [pod.Runtime].
func (r runtime) ListPodSandbox(ctx context.Context, req *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return through(ctx, r, ListSandboxes, r.Runtime.ListPodSandbox, req)
}

// CreateContainer implements [pod.Runtime].
func (r runtime) CreateContainer(ctx context.Context, req *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	return through(ctx, r, "create_container", r.Runtime.CreateContainer, req)
}

// StartContainer implements [pod.Runtime].
func (r runtime) StartContainer(ctx context.Context, req *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	return through(ctx, r, "start_container", r.Runtime.StartContainer, req)
}

// StopContainer implements [pod.Runtime].
func (r runtime) StopContainer(ctx context.Context, req *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	return through(ctx, r, "stop_container", r.Runtime.StopContainer, req)
}

// RemoveContainer implements [pod.Runtime].
func (r runtime) RemoveContainer(ctx context.Context, req *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	return through(ctx, r, "remove_container", r.Runtime.RemoveContainer, req)
}

// ListContainers implements [pod.Runtime].
func (r runtime) ListContainers(ctx context.Context, req *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return through(ctx, r, "list_containers", r.Runtime.ListContainers, req)
}

// ContainerStatus implements [pod.Runtime].
func (r runtime) ContainerStatus(ctx context.Context, req *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	return through(ctx, r, "container_status", r.Runtime.ContainerStatus, req)
}

// UpdateContainerResources implements [pod.Runtime].
func (r runtime) UpdateContainerResources(ctx context.Context, req *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	return through(ctx, r, "update_container", r.Runtime.UpdateContainerResources, req)
}

// ReopenContainerLog implements [pod.Runtime].
func (r runtime) ReopenContainerLog(ctx context.Context, req *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	return through(ctx, r, "reopen_container_log", r.Runtime.ReopenContainerLog, req)
}

// ExecSync implements [pod.Runtime].
func (r runtime) ExecSync(ctx context.Context, req *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	return through(ctx, r, "exec_sync", r.Runtime.ExecSync, req)
}

// CheckpointContainer implements [pod.Runtime].
func (r runtime) CheckpointContainer(ctx context.Context, req *runtimeapi.CheckpointContainerRequest) (*runtimeapi.CheckpointContainerResponse, error) {
	return through(ctx, r, "checkpoint_container", r.Runtime.CheckpointContainer, req)
}

// ImageStatus implements [pod.Runtime].
func (r runtime) ImageStatus(ctx context.Context, req *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	return through(ctx, r, "image_status", r.Runtime.ImageStatus, req)
}

// PullImage implements [pod.Runtime].
func (r runtime) PullImage(ctx context.Context, req *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	return through(ctx, r, "pull_image", r.Runtime.PullImage, req)
}

// ListImages implements [pod.Runtime].
func (r runtime) ListImages(ctx context.Context, req *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	return through(ctx, r, "list_images", r.Runtime.ListImages, req)
}

// RemoveImage implements [pod.Runtime].
func (r runtime) RemoveImage(ctx context.Context, req *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	return through(ctx, r, "remove_image", r.Runtime.RemoveImage, req)
}

// ImageFsInfo implements [pod.Runtime].
func (r runtime) ImageFsInfo(ctx context.Context, req *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	return through(ctx, r, "image_fs_info", r.Runtime.ImageFsInfo, req)
}

// Exec implements [pod.Runtime].
func (r runtime) Exec(ctx context.Context, req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return through(ctx, r, "exec", r.Runtime.Exec, req)
}

// Attach implements [pod.Runtime].
func (r runtime) Attach(ctx context.Context, req *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return through(ctx, r, "attach", r.Runtime.Attach, req)
}

// PortForward implements [pod.Runtime].
func (r runtime) PortForward(ctx context.Context, req *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return through(ctx, r, "port_forward", r.Runtime.PortForward, req)
}

// ContainerStats implements [pod.Runtime].
func (r runtime) ContainerStats(ctx context.Context, req *runtimeapi.ContainerStatsRequest) (*runtimeapi.ContainerStatsResponse, error) {
	return through(ctx, r, "container_stats", r.Runtime.ContainerStats, req)
}

// ListContainerStats implements [pod.Runtime].
func (r runtime) ListContainerStats(ctx context.Context, req *runtimeapi.ListContainerStatsRequest) (*runtimeapi.ListContainerStatsResponse, error) {
	return through(ctx, r, "list_container_stats", r.Runtime.ListContainerStats, req)
}

// PodSandboxStats implements [pod.Runtime].
func (r runtime) PodSandboxStats(ctx context.Context, req *runtimeapi.PodSandboxStatsRequest) (*runtimeapi.PodSandboxStatsResponse, error) {
	return through(ctx, r, "podsandbox_stats", r.Runtime.PodSandboxStats, req)
}

// ListPodSandboxStats implements [pod.Runtime].
func (r runtime) ListPodSandboxStats(ctx context.Context, req *runtimeapi.ListPodSandboxStatsRequest) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	return through(ctx, r, "list_podsandbox_stats", r.Runtime.ListPodSandboxStats, req)
}

// Version implements [pod.Runtime].
func (r runtime) Version(ctx context.Context, req *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return through(ctx, r, "version", r.Runtime.Version, req)
}

// Status implements [pod.Runtime].
func (r runtime) Status(ctx context.Context, req *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	return through(ctx, r, "status", r.Runtime.Status, req)
}

// UpdateRuntimeConfig implements [pod.Runtime].
func (r runtime) UpdateRuntimeConfig(ctx context.Context, req *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	return through(ctx, r, "update_runtime_config", r.Runtime.UpdateRuntimeConfig, req)
}

// RuntimeConfig implements [pod.Runtime].
func (r runtime) RuntimeConfig(ctx context.Context, req *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	return through(ctx, r, "runtime_config", r.Runtime.RuntimeConfig, req)
}
