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
