package cri

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// sink is the server's end of a stream, which keeps what is sent.
type sink[M any] struct {
	grpc.ServerStream
	ctx  context.Context
	sent []*M
}

func (s *sink[M]) Context() context.Context { return s.ctx }

func (s *sink[M]) Send(m *M) error {
	s.sent = append(s.sent, m)
	return nil
}

// streamed is what a streaming list sends, all of it, in messages of bounded size.
func streamed[M, T any](t *testing.T, call func(grpc.ServerStreamingServer[M]) error, items func(*M) []T) []T {
	t.Helper()
	s := &sink[M]{ctx: t.Context()}
	if err := call(s); err != nil {
		t.Fatal(err)
	}
	var all []T
	for _, m := range s.sent {
		if n := len(items(m)); n == 0 || n > chunk {
			t.Errorf("a message has %d items", n)
		}
		all = append(all, items(m)...)
	}
	return all
}

// same compares a stream with the list of the same name.
func same[T proto.Message](t *testing.T, what string, streamed, listed []T, want int) {
	t.Helper()
	if len(listed) != want || len(streamed) != want {
		t.Errorf("%s: %d are streamed and %d listed, and there are %d", what, len(streamed), len(listed), want)
		return
	}
	for i := range listed {
		if !proto.Equal(streamed[i], listed[i]) {
			t.Errorf("%s: %v is streamed, and %v listed", what, streamed[i], listed[i])
			return
		}
	}
}

func TestStreamedListsAreTheLists(t *testing.T) {
	const pods = chunk + 7
	s := fakeServer(t, newWorld(), t.TempDir())
	defer s.Close()
	ctx := t.Context()
	for i := range pods {
		createContainer(t, s, runPod(t, s, "p"+itoa(i)), "c")
	}
	sandboxes, err := s.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	same(t, "sandboxes", streamed(t, func(st grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxesResponse]) error {
		return s.StreamPodSandboxes(&runtimeapi.StreamPodSandboxesRequest{}, st)
	}, (*runtimeapi.StreamPodSandboxesResponse).GetPodSandboxes), sandboxes.Items, pods)

	containers, err := s.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	same(t, "containers", streamed(t, func(st grpc.ServerStreamingServer[runtimeapi.StreamContainersResponse]) error {
		return s.StreamContainers(&runtimeapi.StreamContainersRequest{}, st)
	}, (*runtimeapi.StreamContainersResponse).GetContainers), containers.Containers, pods)

	one := containers.Containers[3]
	filtered := streamed(t, func(st grpc.ServerStreamingServer[runtimeapi.StreamContainersResponse]) error {
		return s.StreamContainers(&runtimeapi.StreamContainersRequest{Filter: &runtimeapi.ContainerFilter{PodSandboxId: one.PodSandboxId}}, st)
	}, (*runtimeapi.StreamContainersResponse).GetContainers)
	same(t, "containers of one sandbox", filtered, []*runtimeapi.Container{one}, 1)
}

// What is measured differs from call to call; of whom it is does not.
func TestStreamedStatsAndImages(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	id := n.run(t, pod, "main", nil, "sleep", "1000")
	images, err := n.ListImages(t.Context(), &runtimeapi.ListImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	same(t, "images", streamed(t, func(st grpc.ServerStreamingServer[runtimeapi.StreamImagesResponse]) error {
		return n.StreamImages(&runtimeapi.StreamImagesRequest{}, st)
	}, (*runtimeapi.StreamImagesResponse).GetImages), images.Images, 1)
	containers := streamed(t, func(st grpc.ServerStreamingServer[runtimeapi.StreamContainerStatsResponse]) error {
		return n.StreamContainerStats(&runtimeapi.StreamContainerStatsRequest{}, st)
	}, (*runtimeapi.StreamContainerStatsResponse).GetContainerStats)
	if len(containers) != 1 || containers[0].GetAttributes().GetId() != id || containers[0].GetMemory().GetWorkingSetBytes().GetValue() == 0 {
		t.Errorf("containers: got %v", containers)
	}
	sandboxes := streamed(t, func(st grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxStatsResponse]) error {
		return n.StreamPodSandboxStats(&runtimeapi.StreamPodSandboxStatsRequest{}, st)
	}, (*runtimeapi.StreamPodSandboxStatsResponse).GetPodSandboxStats)
	if len(sandboxes) != 1 || sandboxes[0].GetAttributes().GetId() != pod || sandboxes[0].GetLinux().GetCpu() == nil {
		t.Errorf("sandboxes: got %v", sandboxes)
	}
	metrics := streamed(t, func(st grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxMetricsResponse]) error {
		return n.StreamPodSandboxMetrics(&runtimeapi.StreamPodSandboxMetricsRequest{}, st)
	}, (*runtimeapi.StreamPodSandboxMetricsResponse).GetPodSandboxMetrics)
	if len(metrics) != 1 || metrics[0].GetPodSandboxId() != pod || len(metrics[0].GetContainerMetrics()) != 1 {
		t.Errorf("metrics: got %v", metrics)
	}
}
