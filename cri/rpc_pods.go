package cri

import (
	"context"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/sandbox"
)

// podCalls are the calls about sandboxes.
type podCalls struct{ pods *sandbox.Sandboxes }

// RunPodSandbox makes and starts a sandbox.
func (p podCalls) RunPodSandbox(ctx context.Context, r *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	return call(ctx, "RunPodSandbox", func(ctx context.Context) (*runtimeapi.RunPodSandboxResponse, error) {
		id, err := p.pods.Run(ctx, r.GetConfig(), r.GetRuntimeHandler())
		return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, err
	})
}

// StopPodSandbox kills the sandbox's containers and takes it down.
func (p podCalls) StopPodSandbox(ctx context.Context, r *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	return call(ctx, "StopPodSandbox", func(ctx context.Context) (*runtimeapi.StopPodSandboxResponse, error) {
		return &runtimeapi.StopPodSandboxResponse{}, p.pods.Stop(ctx, r.GetPodSandboxId())
	})
}

// RemovePodSandbox removes a sandbox and its containers, stopping them first.
func (p podCalls) RemovePodSandbox(ctx context.Context, r *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	return call(ctx, "RemovePodSandbox", func(ctx context.Context) (*runtimeapi.RemovePodSandboxResponse, error) {
		return &runtimeapi.RemovePodSandboxResponse{}, p.pods.Remove(ctx, r.GetPodSandboxId())
	})
}

// PodSandboxStatus returns the status of a sandbox and its containers.
func (p podCalls) PodSandboxStatus(ctx context.Context, r *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	return call(ctx, "PodSandboxStatus", func(context.Context) (*runtimeapi.PodSandboxStatusResponse, error) {
		return p.pods.Table.Status(r)
	})
}

// ListPodSandbox lists sandboxes, the newest first.
func (p podCalls) ListPodSandbox(_ context.Context, r *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{Items: p.pods.Table.List(r.GetFilter())}, nil
}

// UpdatePodSandboxResources takes note of the resources of a whole pod. Its cgroup, the sandbox's parent, is the
// client's.
func (p podCalls) UpdatePodSandboxResources(ctx context.Context, r *runtimeapi.UpdatePodSandboxResourcesRequest) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	return call(ctx, "UpdatePodSandboxResources", func(ctx context.Context) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
		return &runtimeapi.UpdatePodSandboxResourcesResponse{}, p.pods.UpdateResources(ctx, r)
	})
}

// StreamPodSandboxes streams the list of sandboxes.
func (p podCalls) StreamPodSandboxes(r *runtimeapi.StreamPodSandboxesRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxesResponse]) error {
	return send(stream, p.pods.Table.List(r.GetFilter()), func(p []*runtimeapi.PodSandbox) *runtimeapi.StreamPodSandboxesResponse {
		return &runtimeapi.StreamPodSandboxesResponse{PodSandboxes: p}
	})
}
