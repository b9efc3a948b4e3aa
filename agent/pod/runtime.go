package pod

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Runtime is what runs the containers: the embedded runtime in this process, or any CRI runtime behind a socket. The
// methods are the CRI's with the CRI's messages, and so are the codes of their errors (google.golang.org/grpc/status).
//
// # The lifecycle of a pod
//
// A pod is one ready sandbox with containers in it. [Sandboxes].RunPodSandbox returns when the sandbox is ready, which
// is when its network is. Containers are created in it one by one and started; each runs once, and a container that is
// to run again is a new one with a higher attempt. All of them and the sandbox carry the pod's name, namespace and uid
// as labels, by which they are found again: nothing else is remembered of them. The annotations they were given come
// back unchanged.
//
// A pod ends by StopContainer for each container, StopPodSandbox, which ends what still runs in it and gives its
// network back, and RemovePodSandbox, which removes what is left of it and of its containers, logs excepted.
//
// # What every implementation keeps to
//
//   - Its sandboxes and containers go on when this process ends, and exit codes are not lost meanwhile.
//   - A method cut off by its context or by the end of this process can be called again. The Run and Create methods
//     leave nothing behind when they fail.
//   - Stop and Remove do nothing and succeed when there is nothing to stop or remove.
//   - All methods can be called at the same time, also for one pod.
type Runtime interface {
	Sandboxes
	Containers
	Images
	Streams
	Stats
	Node

	// Events calls fn with every event of a container or sandbox, in their order, until ctx ends or the runtime goes
	// away. What happened before the call is not told: who calls lists afterwards. An event says that something
	// changed; the lists say what is. fn returns quickly.
	Events(ctx context.Context, fn func(*runtimeapi.ContainerEventResponse)) error
}

// Sandboxes are the pods as a runtime has them.
type Sandboxes interface {
	// RunPodSandbox makes a sandbox. The attempt in the metadata is one more than that of the pod's last sandbox.
	RunPodSandbox(context.Context, *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error)
	// StopPodSandbox ends every process in the sandbox without grace, and gives its network back. The sandbox stays in
	// the lists, not ready.
	StopPodSandbox(context.Context, *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error)
	// RemovePodSandbox removes the sandbox and its containers, which it ends if need be.
	RemovePodSandbox(context.Context, *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error)
	// PodSandboxStatus has the pod's addresses, which the list has not. It fails with NotFound.
	PodSandboxStatus(context.Context, *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error)
	ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error)
}

// Containers are what runs in sandboxes.
type Containers interface {
	CreateContainer(context.Context, *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error)
	// StartContainer returns when the container's process has been executed. When it fails the container never runs: it
	// stays created, or becomes one that has exited.
	StartContainer(context.Context, *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error)
	// StopContainer sends the container's stop signal, waits for its end for as many seconds as the timeout says, then
	// kills it. It returns when the container has ended. Called again while it waits, the shorter timeout holds.
	StopContainer(context.Context, *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error)
	RemoveContainer(context.Context, *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error)
	ListContainers(context.Context, *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error)
	// ContainerStatus of an exited container never changes. It fails with NotFound.
	ContainerStatus(context.Context, *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error)
	UpdateContainerResources(
		context.Context, *runtimeapi.UpdateContainerResourcesRequest,
	) (*runtimeapi.UpdateContainerResourcesResponse, error)
	ReopenContainerLog(
		context.Context, *runtimeapi.ReopenContainerLogRequest,
	) (*runtimeapi.ReopenContainerLogResponse, error)
	// ExecSync runs a command in the container. That it exits with another code than 0 is no error. When ctx ends or
	// the timeout is over, the command and what it started are killed.
	ExecSync(context.Context, *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error)
	// CheckpointContainer writes the state of a running container to a file. Few runtimes can; the others say what is
	// missing.
	CheckpointContainer(
		context.Context, *runtimeapi.CheckpointContainerRequest,
	) (*runtimeapi.CheckpointContainerResponse, error)
}

// Images are the images of the node.
type Images interface {
	// ImageStatus answers without an image when it is not there.
	ImageStatus(context.Context, *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error)
	// PullImage returns when the image can be used. It ends soon after its context does, and what it has got by then is
	// used by the next pull.
	PullImage(context.Context, *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error)
	ListImages(context.Context, *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error)
	RemoveImage(context.Context, *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error)
	ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error)
}

// Streams return the URL of a streaming server that serves one connection of the kind.
type Streams interface {
	Exec(context.Context, *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error)
	Attach(context.Context, *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error)
	PortForward(context.Context, *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error)
}

// Stats say what pods and containers use.
type Stats interface {
	ContainerStats(context.Context, *runtimeapi.ContainerStatsRequest) (*runtimeapi.ContainerStatsResponse, error)
	ListContainerStats(
		context.Context, *runtimeapi.ListContainerStatsRequest,
	) (*runtimeapi.ListContainerStatsResponse, error)
	PodSandboxStats(context.Context, *runtimeapi.PodSandboxStatsRequest) (*runtimeapi.PodSandboxStatsResponse, error)
	ListPodSandboxStats(
		context.Context, *runtimeapi.ListPodSandboxStatsRequest,
	) (*runtimeapi.ListPodSandboxStatsResponse, error)
}

// Node is the runtime itself.
type Node interface {
	Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error)
	Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error)
	UpdateRuntimeConfig(
		context.Context, *runtimeapi.UpdateRuntimeConfigRequest,
	) (*runtimeapi.UpdateRuntimeConfigResponse, error)
	RuntimeConfig(context.Context, *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error)
}
