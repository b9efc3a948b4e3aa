package conformance

import (
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var lifeCases = []testCase{
	{"SandboxLife", sandboxLife},
	{"ContainerLife", containerLife},
	{"NamesAreTaken", namesAreTaken},
	{"RemoveWhatRuns", removeWhatRuns},
	{"UnknownIDs", unknownIDs},
	{"ManyAtOnce", manyAtOnce},
	{"Events", events},
	{"Runtime", aboutRuntime},
	{"RuntimeConfig", runtimeConfig},
	{"UnknownHandler", unknownHandler},
}

func wantCode(t *testing.T, what string, err error, want codes.Code) {
	t.Helper()
	if status.Code(err) != want {
		t.Errorf("%s: got %v, want %v", what, err, want)
	}
}

// has says whether all that was given is there. A runtime may add to it.
func has(got, given map[string]string) bool {
	for k, v := range given {
		if got[k] != v {
			return false
		}
	}
	return true
}

func sandboxLife(t *testing.T, s *suite) {
	p := s.pod(t, nil)
	r, err := s.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.id})
	must(t)(err)
	st := r.GetStatus()
	if st.GetId() != p.id || st.GetState() != runtimeapi.PodSandboxState_SANDBOX_READY || st.GetCreatedAt() == 0 ||
		st.GetNetwork().GetIp() == "" {
		t.Errorf("status: %v", st)
	}
	if m := st.GetMetadata(); m.GetName() != p.cfg.Metadata.Name || m.GetNamespace() != "conformance" ||
		m.GetUid() != p.cfg.Metadata.Uid || m.GetAttempt() != 0 {
		t.Errorf("metadata: %v", m)
	}
	if !has(st.GetLabels(), p.cfg.Labels) || !has(st.GetAnnotations(), p.cfg.Annotations) {
		t.Errorf("labels %v, annotations %v", st.GetLabels(), st.GetAnnotations())
	}
	ns := st.GetLinux().GetNamespaces().GetOptions()
	if ns.GetNetwork() != runtimeapi.NamespaceMode_POD || ns.GetPid() != runtimeapi.NamespaceMode_CONTAINER ||
		ns.GetIpc() != runtimeapi.NamespaceMode_POD {
		t.Errorf("namespaces: %v", ns)
	}
	for range 2 {
		_, err := s.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.id})
		must(t)(err)
		r, err := s.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.id})
		must(t)(err)
		if r.GetStatus().GetState() != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
			t.Errorf("stopped: %v", r.GetStatus())
		}
	}
	if _, err := p.create(p.container("late", "true")); err == nil && !s.lacks(t, "CreateStopped") {
		t.Error("a container was made in a sandbox that has been stopped")
	}
	for range 2 {
		_, err := s.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.id})
		must(t)(err)
	}
	_, err = s.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.id})
	wantCode(t, "status of a removed sandbox", err, codes.NotFound)
	_, err = s.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.id})
	if err != nil && !s.lacks(t, "StopRemoved") {
		t.Error(err)
	}
}

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

func unknownIDs(t *testing.T, s *suite) {
	const id = "f000000000000000000000000000000000000000000000000000000000000000"
	ctx := t.Context()
	for what, call := range map[string]func() error{
		"PodSandboxStatus": func() error {
			_, err := s.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
			return err
		},
		"StartContainer": func() error {
			_, err := s.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
			return err
		},
		"ContainerStatus": func() error {
			_, err := s.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
			return err
		},
		"UpdateContainerResources": func() error {
			_, err := s.UpdateContainerResources(ctx,
				&runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{}})
			return err
		},
		"ReopenContainerLog": func() error {
			_, err := s.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: id})
			return err
		},
		"ExecSync": func() error {
			_, err := s.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"true"}})
			return err
		},
		"Exec": func() error {
			_, err := s.Exec(ctx, &runtimeapi.ExecRequest{ContainerId: id, Cmd: []string{"true"}, Stdout: true})
			return err
		},
		"Attach": func() error {
			_, err := s.Attach(ctx, &runtimeapi.AttachRequest{ContainerId: id, Stdout: true})
			return err
		},
		"PortForward": func() error {
			_, err := s.PortForward(ctx, &runtimeapi.PortForwardRequest{PodSandboxId: id})
			return err
		},
		"ContainerStats": func() error {
			_, err := s.ContainerStats(ctx, &runtimeapi.ContainerStatsRequest{ContainerId: id})
			return err
		},
		"PodSandboxStats": func() error {
			_, err := s.PodSandboxStats(ctx, &runtimeapi.PodSandboxStatsRequest{PodSandboxId: id})
			return err
		},
		"CreateContainer": func() error {
			p := &sandbox{suite: s, t: t, id: id, cfg: s.config(t)}
			_, err := p.create(p.container("main", "true"))
			return err
		},
	} {
		if err := call(); err == nil {
			t.Errorf("%s: no error", what)
		} else if !s.lacks(t, "NotFound") {
			wantCode(t, what, err, codes.NotFound)
		}
	}
	for what, call := range map[string]func() error{
		"StopPodSandbox": func() error {
			_, err := s.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
			return err
		},
		"RemovePodSandbox": func() error {
			_, err := s.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
			return err
		},
		"StopContainer": func() error {
			_, err := s.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id})
			return err
		},
		"RemoveContainer": func() error {
			_, err := s.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})
			return err
		},
	} {
		if err := call(); err != nil && !s.lacks(t, what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if l, err := s.ListContainers(ctx,
		&runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{Id: id}}); err != nil ||
		len(l.GetContainers()) > 0 {
		t.Errorf("list of an unknown container: %v, %v", l, err)
	}
}

func manyAtOnce(t *testing.T, s *suite) {
	const n = 6
	var wg sync.WaitGroup
	for range n {
		cfg := s.config(t)
		wg.Go(func() {
			r, err := s.RunPodSandbox(t.Context(), s.request(cfg))
			if err != nil {
				t.Error(err)
				return
			}
			defer s.end(t, r.PodSandboxId)
			p := &sandbox{suite: s, t: t, id: r.PodSandboxId, cfg: cfg}
			id, err := p.create(p.container("main", "sleep", "100000"))
			if err == nil {
				err = p.start(id)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	// All that ends a pod at the same time, as when a worker and a collector meet.
	p := s.pod(t, nil)
	id := p.sleeper("main", nil)
	for range 3 {
		wg.Go(func() {
			_, err := s.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id})
			if err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			_, err := s.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.id})
			if err != nil && !s.lacks(t, "StopsMeet") {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func aboutRuntime(t *testing.T, s *suite) {
	v, err := s.Version(t.Context(), &runtimeapi.VersionRequest{})
	if err != nil || v.GetRuntimeName() == "" || v.GetRuntimeVersion() == "" || v.GetRuntimeApiVersion() != "v1" ||
		v.GetVersion() == "" {
		t.Errorf("got %v, %v", v, err)
	}
	st, err := s.Status(t.Context(), &runtimeapi.StatusRequest{Verbose: true})
	must(t)(err)
	ready := map[string]bool{}
	for _, c := range st.GetStatus().GetConditions() {
		ready[c.GetType()] = c.GetStatus()
	}
	if !ready[runtimeapi.RuntimeReady] || !ready[runtimeapi.NetworkReady] || len(st.GetInfo()) == 0 {
		t.Errorf("got %v", st)
	}
	_, err = s.UpdateRuntimeConfig(t.Context(),
		&runtimeapi.UpdateRuntimeConfigRequest{RuntimeConfig: &runtimeapi.RuntimeConfig{}})
	must(t)(err)
}

func runtimeConfig(t *testing.T, s *suite) {
	if r, err := s.RuntimeConfig(t.Context(), &runtimeapi.RuntimeConfigRequest{}); err != nil ||
		r.GetLinux().GetCgroupDriver() != runtimeapi.CgroupDriver_CGROUPFS {
		t.Errorf("got %v, %v", r, err)
	}
}

func unknownHandler(t *testing.T, s *suite) {
	r, err := s.RunPodSandbox(t.Context(),
		&runtimeapi.RunPodSandboxRequest{Config: s.config(t), RuntimeHandler: "no-such-handler"})
	if err == nil {
		s.end(t, r.PodSandboxId)
		t.Error("it was taken")
	}
}

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
