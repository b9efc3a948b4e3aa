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

// StreamContainerStats streams what containers use.
func (m *meters) StreamContainerStats(r *runtimeapi.StreamContainerStatsRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamContainerStatsResponse]) error {
	l, err := m.ListContainerStats(stream.Context(), &runtimeapi.ListContainerStatsRequest{Filter: r.GetFilter()})
	if err != nil {
		return err
	}
	return send(stream, l.GetStats(), func(p []*runtimeapi.ContainerStats) *runtimeapi.StreamContainerStatsResponse {
		return &runtimeapi.StreamContainerStatsResponse{ContainerStats: p}
	})
}

// StreamPodSandboxStats streams what sandboxes use.
func (m *meters) StreamPodSandboxStats(r *runtimeapi.StreamPodSandboxStatsRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxStatsResponse]) error {
	l, err := m.ListPodSandboxStats(stream.Context(), &runtimeapi.ListPodSandboxStatsRequest{Filter: r.GetFilter()})
	if err != nil {
		return err
	}
	return send(stream, l.GetStats(), func(p []*runtimeapi.PodSandboxStats) *runtimeapi.StreamPodSandboxStatsResponse {
		return &runtimeapi.StreamPodSandboxStatsResponse{PodSandboxStats: p}
	})
}
