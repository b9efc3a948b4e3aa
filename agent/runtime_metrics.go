package agent

import (
	"context"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod"
)

// measuredRuntime counts and times every call of a runtime, under the names that kubelet has for them.
type measuredRuntime struct {
	pod.Runtime
	metrics *workMetrics
}

var _ pod.Runtime = measuredRuntime{}

// listSandboxes is by what kubelet's loop that looks for changes is known.
const listSandboxes = "list_podsandbox"

func measured[Q, S any](ctx context.Context, m *workMetrics, operation string, do func(context.Context, Q) (S, error), req Q) (S, error) {
	began := time.Now()
	resp, err := do(ctx, req)
	m.count(operation, began, err)
	return resp, err
}

// RunPodSandbox implements [pod.Runtime].
func (r measuredRuntime) RunPodSandbox(ctx context.Context, req *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	return measured(ctx, r.metrics, "run_podsandbox", r.Runtime.RunPodSandbox, req)
}

// StopPodSandbox implements [pod.Runtime].
func (r measuredRuntime) StopPodSandbox(ctx context.Context, req *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	return measured(ctx, r.metrics, "stop_podsandbox", r.Runtime.StopPodSandbox, req)
}

// RemovePodSandbox implements [pod.Runtime].
func (r measuredRuntime) RemovePodSandbox(ctx context.Context, req *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	return measured(ctx, r.metrics, "remove_podsandbox", r.Runtime.RemovePodSandbox, req)
}

// PodSandboxStatus implements [pod.Runtime].
func (r measuredRuntime) PodSandboxStatus(ctx context.Context, req *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	return measured(ctx, r.metrics, "podsandbox_status", r.Runtime.PodSandboxStatus, req)
}

// ListPodSandbox implements [pod.Runtime].
func (r measuredRuntime) ListPodSandbox(ctx context.Context, req *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return measured(ctx, r.metrics, listSandboxes, r.Runtime.ListPodSandbox, req)
}

// CreateContainer implements [pod.Runtime].
func (r measuredRuntime) CreateContainer(ctx context.Context, req *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	return measured(ctx, r.metrics, "create_container", r.Runtime.CreateContainer, req)
}

// StartContainer implements [pod.Runtime].
func (r measuredRuntime) StartContainer(ctx context.Context, req *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	return measured(ctx, r.metrics, "start_container", r.Runtime.StartContainer, req)
}

// StopContainer implements [pod.Runtime].
func (r measuredRuntime) StopContainer(ctx context.Context, req *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	return measured(ctx, r.metrics, "stop_container", r.Runtime.StopContainer, req)
}

// RemoveContainer implements [pod.Runtime].
func (r measuredRuntime) RemoveContainer(ctx context.Context, req *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	return measured(ctx, r.metrics, "remove_container", r.Runtime.RemoveContainer, req)
}

// ListContainers implements [pod.Runtime].
func (r measuredRuntime) ListContainers(ctx context.Context, req *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return measured(ctx, r.metrics, "list_containers", r.Runtime.ListContainers, req)
}

// ContainerStatus implements [pod.Runtime].
func (r measuredRuntime) ContainerStatus(ctx context.Context, req *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	return measured(ctx, r.metrics, "container_status", r.Runtime.ContainerStatus, req)
}

// UpdateContainerResources implements [pod.Runtime].
func (r measuredRuntime) UpdateContainerResources(ctx context.Context, req *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	return measured(ctx, r.metrics, "update_container", r.Runtime.UpdateContainerResources, req)
}

// ReopenContainerLog implements [pod.Runtime].
func (r measuredRuntime) ReopenContainerLog(ctx context.Context, req *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	return measured(ctx, r.metrics, "reopen_container_log", r.Runtime.ReopenContainerLog, req)
}

// ExecSync implements [pod.Runtime].
func (r measuredRuntime) ExecSync(ctx context.Context, req *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	return measured(ctx, r.metrics, "exec_sync", r.Runtime.ExecSync, req)
}

// CheckpointContainer implements [pod.Runtime].
func (r measuredRuntime) CheckpointContainer(ctx context.Context, req *runtimeapi.CheckpointContainerRequest) (*runtimeapi.CheckpointContainerResponse, error) {
	return measured(ctx, r.metrics, "checkpoint_container", r.Runtime.CheckpointContainer, req)
}

// ImageStatus implements [pod.Runtime].
func (r measuredRuntime) ImageStatus(ctx context.Context, req *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	return measured(ctx, r.metrics, "image_status", r.Runtime.ImageStatus, req)
}

// PullImage implements [pod.Runtime].
func (r measuredRuntime) PullImage(ctx context.Context, req *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	return measured(ctx, r.metrics, "pull_image", r.Runtime.PullImage, req)
}

// ListImages implements [pod.Runtime].
func (r measuredRuntime) ListImages(ctx context.Context, req *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	return measured(ctx, r.metrics, "list_images", r.Runtime.ListImages, req)
}

// RemoveImage implements [pod.Runtime].
func (r measuredRuntime) RemoveImage(ctx context.Context, req *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	return measured(ctx, r.metrics, "remove_image", r.Runtime.RemoveImage, req)
}

// ImageFsInfo implements [pod.Runtime].
func (r measuredRuntime) ImageFsInfo(ctx context.Context, req *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	return measured(ctx, r.metrics, "image_fs_info", r.Runtime.ImageFsInfo, req)
}

// Exec implements [pod.Runtime].
func (r measuredRuntime) Exec(ctx context.Context, req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return measured(ctx, r.metrics, "exec", r.Runtime.Exec, req)
}

// Attach implements [pod.Runtime].
func (r measuredRuntime) Attach(ctx context.Context, req *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return measured(ctx, r.metrics, "attach", r.Runtime.Attach, req)
}

// PortForward implements [pod.Runtime].
func (r measuredRuntime) PortForward(ctx context.Context, req *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return measured(ctx, r.metrics, "port_forward", r.Runtime.PortForward, req)
}

// ContainerStats implements [pod.Runtime].
func (r measuredRuntime) ContainerStats(ctx context.Context, req *runtimeapi.ContainerStatsRequest) (*runtimeapi.ContainerStatsResponse, error) {
	return measured(ctx, r.metrics, "container_stats", r.Runtime.ContainerStats, req)
}

// ListContainerStats implements [pod.Runtime].
func (r measuredRuntime) ListContainerStats(ctx context.Context, req *runtimeapi.ListContainerStatsRequest) (*runtimeapi.ListContainerStatsResponse, error) {
	return measured(ctx, r.metrics, "list_container_stats", r.Runtime.ListContainerStats, req)
}

// PodSandboxStats implements [pod.Runtime].
func (r measuredRuntime) PodSandboxStats(ctx context.Context, req *runtimeapi.PodSandboxStatsRequest) (*runtimeapi.PodSandboxStatsResponse, error) {
	return measured(ctx, r.metrics, "podsandbox_stats", r.Runtime.PodSandboxStats, req)
}

// ListPodSandboxStats implements [pod.Runtime].
func (r measuredRuntime) ListPodSandboxStats(ctx context.Context, req *runtimeapi.ListPodSandboxStatsRequest) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	return measured(ctx, r.metrics, "list_podsandbox_stats", r.Runtime.ListPodSandboxStats, req)
}

// Version implements [pod.Runtime].
func (r measuredRuntime) Version(ctx context.Context, req *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return measured(ctx, r.metrics, "version", r.Runtime.Version, req)
}

// Status implements [pod.Runtime].
func (r measuredRuntime) Status(ctx context.Context, req *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	return measured(ctx, r.metrics, "status", r.Runtime.Status, req)
}

// UpdateRuntimeConfig implements [pod.Runtime].
func (r measuredRuntime) UpdateRuntimeConfig(ctx context.Context, req *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	return measured(ctx, r.metrics, "update_runtime_config", r.Runtime.UpdateRuntimeConfig, req)
}

// RuntimeConfig implements [pod.Runtime].
func (r measuredRuntime) RuntimeConfig(ctx context.Context, req *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	return measured(ctx, r.metrics, "runtime_config", r.Runtime.RuntimeConfig, req)
}
