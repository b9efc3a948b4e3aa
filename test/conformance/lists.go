package conformance

import (
	"slices"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var listCases = []testCase{
	{"Filters", filters},
	{"ListOrder", listOrder},
	{"ShortIDs", shortIDs},
}

// listed are the sandboxes and the containers that a filter lets through.
func (s *suite) listed(t *testing.T, f *runtimeapi.PodSandboxFilter) (ids []string) {
	t.Helper()
	l, err := s.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{Filter: f})
	must(t)(err)
	for _, i := range l.GetItems() {
		ids = append(ids, i.GetId())
	}
	return ids
}

func (s *suite) listedContainers(t *testing.T, f *runtimeapi.ContainerFilter) (ids []string) {
	t.Helper()
	l, err := s.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{Filter: f})
	must(t)(err)
	for _, i := range l.GetContainers() {
		ids = append(ids, i.GetId())
	}
	return ids
}

func filters(t *testing.T, s *suite) {
	a, b := s.pod(t, nil), s.pod(t, nil)
	ca, cb := a.sleeper("a", nil), b.sleeper("b", nil)
	_, err := s.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: cb})
	must(t)(err)
	label := func(p *sandbox) map[string]string { return map[string]string{"case": p.cfg.Labels["case"]} }
	ready := &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY}
	notReady := &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY}
	running := &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}
	exited := &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_EXITED}
	for what, x := range map[string]struct{ got, want []string }{
		"sandbox by id": {s.listed(t, &runtimeapi.PodSandboxFilter{Id: a.id}), []string{a.id}},
		"by label":      {s.listed(t, &runtimeapi.PodSandboxFilter{LabelSelector: label(b)}), []string{b.id}},
		"by label and state": {
			s.listed(t, &runtimeapi.PodSandboxFilter{LabelSelector: label(b), State: ready}),
			[]string{b.id},
		},
		"by label, other state":   {s.listed(t, &runtimeapi.PodSandboxFilter{LabelSelector: label(b), State: notReady}), nil},
		"id and label of another": {s.listed(t, &runtimeapi.PodSandboxFilter{Id: a.id, LabelSelector: label(b)}), nil},
		"container by id":         {s.listedContainers(t, &runtimeapi.ContainerFilter{Id: ca}), []string{ca}},
		"container by sandbox":    {s.listedContainers(t, &runtimeapi.ContainerFilter{PodSandboxId: b.id}), []string{cb}},
		"container by label": {
			s.listedContainers(t, &runtimeapi.ContainerFilter{LabelSelector: label(a)}),
			[]string{ca},
		},
		"that runs": {
			s.listedContainers(t, &runtimeapi.ContainerFilter{PodSandboxId: b.id, State: running}),
			nil,
		},
		"that has exited": {
			s.listedContainers(t, &runtimeapi.ContainerFilter{PodSandboxId: b.id, State: exited}),
			[]string{cb},
		},
		"of another sandbox": {s.listedContainers(t, &runtimeapi.ContainerFilter{Id: ca, PodSandboxId: b.id}), nil},
	} {
		if !slices.Equal(x.got, x.want) {
			t.Errorf("%s: got %q, want %q", what, x.got, x.want)
		}
	}
	if all := s.listed(t, nil); !slices.Contains(all, a.id) || !slices.Contains(all, b.id) {
		t.Errorf("all: %q", all)
	}
	l, err := s.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{Id: ca}})
	must(t)(err)
	if c := l.GetContainers()[0]; c.GetPodSandboxId() != a.id || c.GetMetadata().GetName() != "a" ||
		c.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING ||
		c.GetCreatedAt() == 0 || c.GetImageRef() == "" || c.GetImage().GetImage() == "" || c.GetLabels()["name"] != "a" {
		t.Errorf("got %v", c)
	}
}

func listOrder(t *testing.T, s *suite) {
	var pods []string
	var p *sandbox
	name := map[string]string{"order": "yes"}
	for range 4 {
		p = s.pod(t, func(c *runtimeapi.PodSandboxConfig) { c.Labels["order"] = "yes" })
		pods = append(pods, p.id)
	}
	slices.Reverse(pods)
	if got := s.listed(t, &runtimeapi.PodSandboxFilter{LabelSelector: name}); !slices.Equal(got, pods) {
		t.Errorf("sandboxes: got %q, want the newest first: %q", got, pods)
	}
	var ctrs []string
	for i := range 4 {
		id, err := p.create(p.container("c"+itoa(i), "true"))
		must(t)(err)
		ctrs = append(ctrs, id)
	}
	slices.Reverse(ctrs)
	if got := s.listedContainers(t, &runtimeapi.ContainerFilter{PodSandboxId: p.id}); !slices.Equal(got, ctrs) {
		t.Errorf("containers: got %q, want the newest first: %q", got, ctrs)
	}
}

func shortIDs(t *testing.T, s *suite) {
	p := s.pod(t, nil)
	id := p.sleeper("main", nil)
	if st := p.status(id[:13]); st.GetId() != id {
		t.Errorf("got %v", st)
	}
	r, err := s.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.id[:13]})
	if err != nil || r.GetStatus().GetId() != p.id {
		t.Errorf("got %v, %v", r, err)
	}
	if got := s.listed(t, &runtimeapi.PodSandboxFilter{Id: p.id[:13]}); !slices.Equal(got, []string{p.id}) {
		t.Errorf("got %q", got)
	}
	if got := s.listedContainers(t, &runtimeapi.ContainerFilter{Id: id[:13], PodSandboxId: p.id[:13]}); !slices.Equal(got,
		[]string{id}) {
		t.Errorf("got %q", got)
	}
}
