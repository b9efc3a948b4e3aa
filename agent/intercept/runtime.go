package intercept

import (
	"context"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod"
)

// runtime has every call go through an interceptor. Its calls are parted as those of [pod.Runtime] are.
type runtime struct {
	sandboxes
	containers
	images
	streams
	stats
	node

	events func(context.Context, func(*runtimeapi.ContainerEventResponse)) error
}

// Runtime has the interceptors around every call of a runtime, the first one outermost. Events are no call.
func Runtime(r pod.Runtime, around ...Interceptor) pod.Runtime {
	i := chain(around)
	return runtime{sandboxes{r, i}, containers{r, i}, images{r, i}, streams{r, i}, stats{r, i}, node{r, i}, r.Events}
}

// Events implements [pod.Runtime].
func (r runtime) Events(ctx context.Context, fn func(*runtimeapi.ContainerEventResponse)) error {
	return r.events(ctx, fn)
}

// through makes one call.
func through[Q proto.Message, S any](
	ctx context.Context, around Interceptor, operation string, do func(context.Context, Q) (S, error), req Q,
) (S, error) {
	var resp S
	err := around(ctx, Call{Operation: operation, Request: req}, func() (err error) {
		resp, err = do(ctx, req)
		return err
	})
	return resp, err
}

// sandboxes are the calls about sandboxes.
type sandboxes struct {
	calls  pod.Sandboxes
	around Interceptor
}

// RunPodSandbox implements [pod.Sandboxes].
func (s sandboxes) RunPodSandbox(
	ctx context.Context, req *runtimeapi.RunPodSandboxRequest,
) (*runtimeapi.RunPodSandboxResponse, error) {
	return through(ctx, s.around, "run_podsandbox", s.calls.RunPodSandbox, req)
}

// StopPodSandbox implements [pod.Sandboxes].
func (s sandboxes) StopPodSandbox(
	ctx context.Context, req *runtimeapi.StopPodSandboxRequest,
) (*runtimeapi.StopPodSandboxResponse, error) {
	return through(ctx, s.around, "stop_podsandbox", s.calls.StopPodSandbox, req)
}

// RemovePodSandbox implements [pod.Sandboxes].
func (s sandboxes) RemovePodSandbox(
	ctx context.Context, req *runtimeapi.RemovePodSandboxRequest,
) (*runtimeapi.RemovePodSandboxResponse, error) {
	return through(ctx, s.around, "remove_podsandbox", s.calls.RemovePodSandbox, req)
}

// PodSandboxStatus implements [pod.Sandboxes].
func (s sandboxes) PodSandboxStatus(
	ctx context.Context, req *runtimeapi.PodSandboxStatusRequest,
) (*runtimeapi.PodSandboxStatusResponse, error) {
	return through(ctx, s.around, "podsandbox_status", s.calls.PodSandboxStatus, req)
}

// ListPodSandbox implements [pod.Sandboxes].
func (s sandboxes) ListPodSandbox(
	ctx context.Context, req *runtimeapi.ListPodSandboxRequest,
) (*runtimeapi.ListPodSandboxResponse, error) {
	return through(ctx, s.around, ListSandboxes, s.calls.ListPodSandbox, req)
}

// containers are the calls about containers.
type containers struct {
	calls  pod.Containers
	around Interceptor
}

// CreateContainer implements [pod.Containers].
func (c containers) CreateContainer(
	ctx context.Context, req *runtimeapi.CreateContainerRequest,
) (*runtimeapi.CreateContainerResponse, error) {
	return through(ctx, c.around, "create_container", c.calls.CreateContainer, req)
}

// StartContainer implements [pod.Containers].
func (c containers) StartContainer(
	ctx context.Context, req *runtimeapi.StartContainerRequest,
) (*runtimeapi.StartContainerResponse, error) {
	return through(ctx, c.around, "start_container", c.calls.StartContainer, req)
}

// StopContainer implements [pod.Containers].
func (c containers) StopContainer(
	ctx context.Context, req *runtimeapi.StopContainerRequest,
) (*runtimeapi.StopContainerResponse, error) {
	return through(ctx, c.around, "stop_container", c.calls.StopContainer, req)
}

// RemoveContainer implements [pod.Containers].
func (c containers) RemoveContainer(
	ctx context.Context, req *runtimeapi.RemoveContainerRequest,
) (*runtimeapi.RemoveContainerResponse, error) {
	return through(ctx, c.around, "remove_container", c.calls.RemoveContainer, req)
}

// ListContainers implements [pod.Containers].
func (c containers) ListContainers(
	ctx context.Context, req *runtimeapi.ListContainersRequest,
) (*runtimeapi.ListContainersResponse, error) {
	return through(ctx, c.around, "list_containers", c.calls.ListContainers, req)
}

// ContainerStatus implements [pod.Containers].
func (c containers) ContainerStatus(
	ctx context.Context, req *runtimeapi.ContainerStatusRequest,
) (*runtimeapi.ContainerStatusResponse, error) {
	return through(ctx, c.around, "container_status", c.calls.ContainerStatus, req)
}

// UpdateContainerResources implements [pod.Containers].
func (c containers) UpdateContainerResources(
	ctx context.Context, req *runtimeapi.UpdateContainerResourcesRequest,
) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	return through(ctx, c.around, "update_container", c.calls.UpdateContainerResources, req)
}

// ReopenContainerLog implements [pod.Containers].
func (c containers) ReopenContainerLog(
	ctx context.Context, req *runtimeapi.ReopenContainerLogRequest,
) (*runtimeapi.ReopenContainerLogResponse, error) {
	return through(ctx, c.around, "reopen_container_log", c.calls.ReopenContainerLog, req)
}

// ExecSync implements [pod.Containers].
func (c containers) ExecSync(
	ctx context.Context, req *runtimeapi.ExecSyncRequest,
) (*runtimeapi.ExecSyncResponse, error) {
	return through(ctx, c.around, "exec_sync", c.calls.ExecSync, req)
}

// CheckpointContainer implements [pod.Containers].
func (c containers) CheckpointContainer(
	ctx context.Context, req *runtimeapi.CheckpointContainerRequest,
) (*runtimeapi.CheckpointContainerResponse, error) {
	return through(ctx, c.around, "checkpoint_container", c.calls.CheckpointContainer, req)
}

// images are the calls about images.
type images struct {
	calls  pod.Images
	around Interceptor
}

// ImageStatus implements [pod.Images].
func (i images) ImageStatus(
	ctx context.Context, req *runtimeapi.ImageStatusRequest,
) (*runtimeapi.ImageStatusResponse, error) {
	return through(ctx, i.around, "image_status", i.calls.ImageStatus, req)
}

// PullImage implements [pod.Images].
func (i images) PullImage(
	ctx context.Context, req *runtimeapi.PullImageRequest,
) (*runtimeapi.PullImageResponse, error) {
	return through(ctx, i.around, "pull_image", i.calls.PullImage, req)
}

// ListImages implements [pod.Images].
func (i images) ListImages(
	ctx context.Context, req *runtimeapi.ListImagesRequest,
) (*runtimeapi.ListImagesResponse, error) {
	return through(ctx, i.around, "list_images", i.calls.ListImages, req)
}

// RemoveImage implements [pod.Images].
func (i images) RemoveImage(
	ctx context.Context, req *runtimeapi.RemoveImageRequest,
) (*runtimeapi.RemoveImageResponse, error) {
	return through(ctx, i.around, "remove_image", i.calls.RemoveImage, req)
}

// ImageFsInfo implements [pod.Images].
func (i images) ImageFsInfo(
	ctx context.Context, req *runtimeapi.ImageFsInfoRequest,
) (*runtimeapi.ImageFsInfoResponse, error) {
	return through(ctx, i.around, "image_fs_info", i.calls.ImageFsInfo, req)
}

// streams are the calls that return the URL of a stream.
type streams struct {
	calls  pod.Streams
	around Interceptor
}

// Exec implements [pod.Streams].
func (s streams) Exec(ctx context.Context, req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return through(ctx, s.around, "exec", s.calls.Exec, req)
}

// Attach implements [pod.Streams].
func (s streams) Attach(ctx context.Context, req *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return through(ctx, s.around, "attach", s.calls.Attach, req)
}

// PortForward implements [pod.Streams].
func (s streams) PortForward(
	ctx context.Context, req *runtimeapi.PortForwardRequest,
) (*runtimeapi.PortForwardResponse, error) {
	return through(ctx, s.around, "port_forward", s.calls.PortForward, req)
}

// stats are the calls about what is used.
type stats struct {
	calls  pod.Stats
	around Interceptor
}

// ContainerStats implements [pod.Stats].
func (s stats) ContainerStats(
	ctx context.Context, req *runtimeapi.ContainerStatsRequest,
) (*runtimeapi.ContainerStatsResponse, error) {
	return through(ctx, s.around, "container_stats", s.calls.ContainerStats, req)
}

// ListContainerStats implements [pod.Stats].
func (s stats) ListContainerStats(
	ctx context.Context, req *runtimeapi.ListContainerStatsRequest,
) (*runtimeapi.ListContainerStatsResponse, error) {
	return through(ctx, s.around, "list_container_stats", s.calls.ListContainerStats, req)
}

// PodSandboxStats implements [pod.Stats].
func (s stats) PodSandboxStats(
	ctx context.Context, req *runtimeapi.PodSandboxStatsRequest,
) (*runtimeapi.PodSandboxStatsResponse, error) {
	return through(ctx, s.around, "podsandbox_stats", s.calls.PodSandboxStats, req)
}

// ListPodSandboxStats implements [pod.Stats].
func (s stats) ListPodSandboxStats(
	ctx context.Context, req *runtimeapi.ListPodSandboxStatsRequest,
) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	return through(ctx, s.around, "list_podsandbox_stats", s.calls.ListPodSandboxStats, req)
}

// node is the calls about the runtime itself.
type node struct {
	calls  pod.Node
	around Interceptor
}

// Version implements [pod.Node].
func (n node) Version(ctx context.Context, req *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return through(ctx, n.around, "version", n.calls.Version, req)
}

// Status implements [pod.Node].
func (n node) Status(ctx context.Context, req *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	return through(ctx, n.around, "status", n.calls.Status, req)
}

// UpdateRuntimeConfig implements [pod.Node].
func (n node) UpdateRuntimeConfig(
	ctx context.Context, req *runtimeapi.UpdateRuntimeConfigRequest,
) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	return through(ctx, n.around, "update_runtime_config", n.calls.UpdateRuntimeConfig, req)
}

// RuntimeConfig implements [pod.Node].
func (n node) RuntimeConfig(
	ctx context.Context, req *runtimeapi.RuntimeConfigRequest,
) (*runtimeapi.RuntimeConfigResponse, error) {
	return through(ctx, n.around, "runtime_config", n.calls.RuntimeConfig, req)
}
