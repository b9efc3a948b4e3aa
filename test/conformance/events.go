package conformance

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// events asks for the next event only when the last has been seen, so that runtimes whose lists are compared tell the
// same.
func events(t *testing.T, s *suite) {
	p := s.pod(t, nil)
	seen := make(chan *runtimeapi.ContainerEventResponse, 1024)
	ctx, cancel := contextOf(t)
	ended := make(chan error, 1)
	go func() { ended <- s.Events(ctx, func(e *runtimeapi.ContainerEventResponse) { seen <- e }) }()
	defer func() { cancel(); <-ended }()
	next := func(id string, kind runtimeapi.ContainerEventType) {
		t.Helper()
		for {
			select {
			case e := <-seen:
				if e.GetContainerId() != id {
					continue
				}
				if e.GetContainerEventType() != kind || e.GetPodSandboxStatus().GetId() != p.id ||
					e.GetPodSandboxStatus().GetMetadata().GetUid() != p.cfg.Metadata.Uid || e.GetCreatedAt() == 0 {
					t.Errorf("got %v, want %v", e, kind)
				}
				return
			case <-ctx.Done():
				t.Fatalf("no event %v", kind)
			}
		}
	}
	// Whoever has just subscribed may not be heard of yet: containers are made until one is told of.
	for i := 0; ; i++ {
		id, err := p.create(p.container("probe"+itoa(i), "true"))
		must(t)(err)
		if told := waitFor(seen, id); told {
			break
		}
	}
	id, err := p.create(p.container("main", "sleep", "100000"))
	must(t)(err)
	next(id, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	must(t)(p.start(id))
	next(id, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	_, err = s.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id})
	must(t)(err)
	next(id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	_, err = s.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id})
	must(t)(err)
	next(id, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	_, err = s.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.id})
	must(t)(err)
	next(p.id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	_, err = s.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.id})
	must(t)(err)
	if !s.lacks(t, "SandboxDeleted") {
		next(p.id, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	}
}
