package cri

import (
	"context"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The calls that parts of the runtime answer.

// CheckpointContainer writes an archive of a running container, which goes on running. Where CRIU is missing, or cannot
// work on this kernel, it answers with the code Unimplemented and names what is missing.
func (s *Server) CheckpointContainer(ctx context.Context, r *runtimeapi.CheckpointContainerRequest) (*runtimeapi.CheckpointContainerResponse, error) {
	return s.core.checkpoint(ctx, r)
}

// ReopenContainerLog makes the keeper open the log again, after somebody has moved it away.
func (s *Server) ReopenContainerLog(ctx context.Context, r *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	return s.core.reopenLog(ctx, r)
}

// RuntimeConfig says which cgroup driver is in use.
func (s *Server) RuntimeConfig(ctx context.Context, r *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	return s.core.runtimeConfig(ctx, r)
}

// Status says whether sandboxes can be run.
func (s *Server) Status(ctx context.Context, r *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	return s.core.status(ctx, r)
}

// Exec returns the URL of a stream with a command in a container.
func (s *Server) Exec(ctx context.Context, r *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return s.core.urls.exec(ctx, r)
}

// Attach returns the URL of a stream with the first process of a container.
func (s *Server) Attach(ctx context.Context, r *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return s.core.urls.attach(ctx, r)
}

// PortForward returns the URL of streams to ports of a sandbox.
func (s *Server) PortForward(ctx context.Context, r *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return s.core.urls.portForward(ctx, r)
}

// ContainerStats returns what a container uses.
func (s *Server) ContainerStats(ctx context.Context, r *runtimeapi.ContainerStatsRequest) (*runtimeapi.ContainerStatsResponse, error) {
	return s.core.meters.containerStat(ctx, r)
}

// ListContainerStats returns what the containers that run use.
func (s *Server) ListContainerStats(ctx context.Context, r *runtimeapi.ListContainerStatsRequest) (*runtimeapi.ListContainerStatsResponse, error) {
	return s.core.meters.containerStats(ctx, r)
}

// PodSandboxStats returns what a sandbox uses.
func (s *Server) PodSandboxStats(ctx context.Context, r *runtimeapi.PodSandboxStatsRequest) (*runtimeapi.PodSandboxStatsResponse, error) {
	return s.core.meters.podStat(ctx, r)
}

// ListPodSandboxStats returns what the sandboxes that are ready use.
func (s *Server) ListPodSandboxStats(ctx context.Context, r *runtimeapi.ListPodSandboxStatsRequest) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	return s.core.meters.podStats(ctx, r)
}

// ListMetricDescriptors describes the metrics of pods and containers: those that this machine can measure.
func (s *Server) ListMetricDescriptors(ctx context.Context, r *runtimeapi.ListMetricDescriptorsRequest) (*runtimeapi.ListMetricDescriptorsResponse, error) {
	return s.core.meters.descriptors(ctx, r)
}

// ListPodSandboxMetrics measures the pods that are ready and their containers that run.
func (s *Server) ListPodSandboxMetrics(ctx context.Context, r *runtimeapi.ListPodSandboxMetricsRequest) (*runtimeapi.ListPodSandboxMetricsResponse, error) {
	return s.core.meters.metrics(ctx, r)
}

// StreamPodSandboxMetrics is ListPodSandboxMetrics as a stream.
func (s *Server) StreamPodSandboxMetrics(r *runtimeapi.StreamPodSandboxMetricsRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxMetricsResponse]) error {
	return s.core.meters.streamMetrics(r, stream)
}
