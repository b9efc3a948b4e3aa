package cri

import (
	"slices"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Lists as streams, for nodes with more than fits into one message of gRPC.

// chunk is how many items go into one message: of the largest ones, well under 4 MiB.
const chunk = 128

// send sends items in chunks.
func send[T, M any](stream grpc.ServerStreamingServer[M], items []T, message func([]T) *M) error {
	for part := range slices.Chunk(items, chunk) {
		if err := stream.Send(message(part)); err != nil {
			return err
		}
	}
	return nil
}

// StreamPodSandboxes streams the list of sandboxes.
func (s *Server) StreamPodSandboxes(r *runtimeapi.StreamPodSandboxesRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxesResponse]) error {
	return send(stream, s.core.pods.Table.List(r.GetFilter()), func(p []*runtimeapi.PodSandbox) *runtimeapi.StreamPodSandboxesResponse {
		return &runtimeapi.StreamPodSandboxesResponse{PodSandboxes: p}
	})
}

// StreamContainers streams the list of containers.
func (s *Server) StreamContainers(r *runtimeapi.StreamContainersRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamContainersResponse]) error {
	return send(stream, s.core.ctrs.Table.List(r.GetFilter()), func(p []*runtimeapi.Container) *runtimeapi.StreamContainersResponse {
		return &runtimeapi.StreamContainersResponse{Containers: p}
	})
}

// StreamContainerStats streams what containers use.
func (s *Server) StreamContainerStats(r *runtimeapi.StreamContainerStatsRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamContainerStatsResponse]) error {
	l, err := s.ListContainerStats(stream.Context(), &runtimeapi.ListContainerStatsRequest{Filter: r.GetFilter()})
	if err != nil {
		return err
	}
	return send(stream, l.GetStats(), func(p []*runtimeapi.ContainerStats) *runtimeapi.StreamContainerStatsResponse {
		return &runtimeapi.StreamContainerStatsResponse{ContainerStats: p}
	})
}

// StreamPodSandboxStats streams what sandboxes use.
func (s *Server) StreamPodSandboxStats(r *runtimeapi.StreamPodSandboxStatsRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxStatsResponse]) error {
	l, err := s.ListPodSandboxStats(stream.Context(), &runtimeapi.ListPodSandboxStatsRequest{Filter: r.GetFilter()})
	if err != nil {
		return err
	}
	return send(stream, l.GetStats(), func(p []*runtimeapi.PodSandboxStats) *runtimeapi.StreamPodSandboxStatsResponse {
		return &runtimeapi.StreamPodSandboxStatsResponse{PodSandboxStats: p}
	})
}
