package conformance

import (
	"testing"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func containerLife(t *testing.T, s *suite) {
	p := s.pod(t, nil)
	cfg := p.container("main", "sleep", "100000")
	cfg.Metadata.Attempt, cfg.Annotations = 3, map[string]string{"io.kubernetes.container.hash": "abc"}
	id, err := p.create(cfg)
	must(t)(err)
	st := p.status(id)
	if st.GetState() != runtimeapi.ContainerState_CONTAINER_CREATED || st.GetCreatedAt() == 0 || st.GetStartedAt() != 0 ||
		st.GetFinishedAt() != 0 {
		t.Errorf("created: %v", st)
	}
	if st.GetMetadata().GetName() != "main" || st.GetMetadata().GetAttempt() != 3 || st.GetLabels()["name"] != "main" ||
		len(st.GetLabels()) != 2 ||
		st.GetAnnotations()["io.kubernetes.container.hash"] != "abc" || len(st.GetAnnotations()) != 1 {
		t.Errorf("metadata %v, labels %v, annotations %v", st.GetMetadata(), st.GetLabels(), st.GetAnnotations())
	}
	if st.GetImage().GetImage() == "" || st.GetImageRef() == "" || st.GetLogPath() != p.cfg.LogDirectory+"/main.log" {
		t.Errorf("image %v, reference %q, log %q", st.GetImage(), st.GetImageRef(), st.GetLogPath())
	}
	must(t)(p.start(id))
	st = p.status(id)
	if st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING || st.GetStartedAt() < st.GetCreatedAt() ||
		st.GetFinishedAt() != 0 {
		t.Errorf("running: %v", st)
	}
	if err := p.start(id); err == nil {
		t.Error("a container that runs was started again")
	}
	for range 2 {
		_, err := s.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id})
		must(t)(err)
	}
	st = p.status(id)
	if st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || st.GetFinishedAt() < st.GetStartedAt() ||
		st.GetExitCode() != 137 {
		t.Errorf("stopped: %v", st)
	}
	if err := p.start(id); err == nil {
		t.Error("a container that has exited was started again")
	}
	if again := p.status(id); again.GetFinishedAt() != st.GetFinishedAt() {
		t.Errorf("the status of an exited container has changed: %v, %v", st, again)
	}
	for range 2 {
		_, err := s.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id})
		must(t)(err)
	}
	_, err = s.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	wantCode(t, "status of a removed container", err, codes.NotFound)

	id, err = p.create(p.container("never", "true"))
	must(t)(err)
	_, err = s.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id})
	must(t)(err)
	_, err = s.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id})
	must(t)(err)
}

func namesAreTaken(t *testing.T, s *suite) {
	p := s.pod(t, nil)
	if r, err := s.RunPodSandbox(t.Context(), s.request(p.cfg)); err == nil {
		t.Error("a second sandbox has the name of the first")
		s.end(t, r.PodSandboxId)
	}
	first, err := p.create(p.container("main", "true"))
	must(t)(err)
	if _, err := p.create(p.container("main", "true")); err == nil {
		t.Error("a second container has the name of the first")
	}
	_, err = s.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: first})
	must(t)(err)
	if _, err := p.create(p.container("main", "true")); err != nil {
		t.Errorf("the name of a removed container: %v", err)
	}
	bad := p.container("bad", "true")
	bad.Image.Image = "berth.test/not-there:1"
	if _, err := p.create(bad); err == nil {
		t.Error("a container was made of an image that is not there")
	}
	bad = p.container("bad", "true")
	if _, err := p.create(bad); err != nil {
		t.Errorf("a create that failed has kept its name: %v", err)
	}
}

func removeWhatRuns(t *testing.T, s *suite) {
	p := s.pod(t, nil)
	id := p.sleeper("one", nil)
	_, err := s.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id})
	must(t)(err)
	id = p.sleeper("two", nil)
	_, err = s.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.id})
	must(t)(err)
	if st := p.status(id); st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || st.GetExitCode() != 137 {
		t.Errorf("a container of a stopped sandbox: %v", st)
	}
	_, err = s.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.id})
	must(t)(err)
	_, err = s.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	wantCode(t, "status of a container of a removed sandbox", err, codes.NotFound)

	p = s.pod(t, nil)
	p.sleeper("main", nil)
	_, err = s.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.id})
	must(t)(err)
}
