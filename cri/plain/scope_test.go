package plain

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/coreos/go-systemd/v22/dbus"
	lib "github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-node/berth/cgroups/systemd"
)

// manager is systemd, which makes nothing.
type manager struct {
	version int
	err     error
	said    []string
	props   []dbus.Property
	settled chan error
}

func (m *manager) Version() int { return m.version }

func (m *manager) MakeScope(group string, props []dbus.Property) error {
	m.said, m.props = append(m.said, "make "+group), props
	return m.err
}

func (m *manager) StopScope(group string) error {
	m.said = append(m.said, "stop "+group)
	return nil
}

func (m *manager) Settle() error { return <-m.settled }

// idler is a process that holds a scope.
type idler struct{ closed chan struct{} }

func (p idler) Pid() int { return 42 }

func (p idler) Close() error {
	close(p.closed)
	return nil
}

func withManager(m *manager) (Machine, idler) {
	p := idler{make(chan struct{})}
	return v2().WithScopes(Scopes{Systemd: m, Hold: func() (Holder, error) { return p, nil }}), p
}

// inScope is a container as a pod has it where systemd makes the groups.
func inScope() *specs.Spec {
	s := unified()
	s.Linux.CgroupsPath = "kube-pod1.slice:cri:c"
	s.Linux.Resources.CPU = &specs.LinuxCPU{Quota: new(int64(12345)), Period: new(uint64(100000)), Cpus: "0-1"}
	s.Linux.Resources.Pids = &specs.LinuxPids{Limit: new(int64(-1))}
	s.Annotations = map[string]string{"io.kubernetes.cri.sandbox-id": "s", "org.systemd.property.CollectMode": "'inactive-or-failed'"}
	return s
}

func TestScopeIsOrdinary(t *testing.T) {
	m, _ := withManager(&manager{version: 252})
	s, err := Of(inScope(), m)
	if err != nil {
		t.Fatal(err)
	}
	const group = "/kube.slice/kube-pod1.slice/cri-c.scope"
	if !s.Scoped() || s.group != group || !slices.Equal(s.Procs, []string{"/sys/fs/cgroup" + group + "/cgroup.procs"}) {
		t.Errorf("group %s, processes in %v", s.group, s.Procs)
	}
	r := resources(s.resources)
	props, err := s.scope.begin(r, 252)
	if err != nil {
		t.Fatal(err)
	}
	said := ""
	for _, p := range props {
		said += p.Name + "=" + p.Value.String() + "\n"
	}
	for _, want := range []string{
		`Slice="kube-pod1.slice"`, "Delegate=true", "DefaultDependencies=false", `CollectMode="inactive-or-failed"`, `DevicePolicy="strict"`,
		"CPUWeight=@t 4", "CPUQuotaPerSecUSec=@t 130000", "TasksMax=@t 18446744073709551615", "AllowedCPUs=@ay [0x3]",
	} {
		if !strings.Contains(said, want+"\n") {
			t.Errorf("systemd is not told %s, but\n%s", want, said)
		}
	}
	if r.CpuQuota != 13000 {
		t.Errorf("the group's quota is %d", r.CpuQuota)
	}
}

func TestScopeIsNotOrdinary(t *testing.T) {
	for name, change := range map[string]func(*specs.Spec, *manager){
		"a path":               func(s *specs.Spec, _ *manager) { s.Linux.CgroupsPath = "/kube/c" },
		"a path in a slice":    func(s *specs.Spec, _ *manager) { s.Linux.CgroupsPath = "kube.slice/x:cri:c" },
		"a slice":              func(s *specs.Spec, _ *manager) { s.Linux.CgroupsPath = "kube.slice:cri:c.slice" },
		"no slice":             func(s *specs.Spec, _ *manager) { s.Linux.CgroupsPath = ":cri:c" },
		"no prefix":            func(s *specs.Spec, _ *manager) { s.Linux.CgroupsPath = "kube.slice::c" },
		"an old systemd":       func(_ *specs.Spec, m *manager) { m.version = 243 },
		"another property":     func(s *specs.Spec, _ *manager) { s.Annotations["org.systemd.property.TimeoutStopUSec"] = "uint64 1" },
		"another mode":         func(s *specs.Spec, _ *manager) { s.Annotations["org.systemd.property.CollectMode"] = "'inactive'" },
		"few processes":        func(s *specs.Spec, _ *manager) { s.Linux.Resources.Pids.Limit = new(int64(3)) },
		"few processes, by v2": func(s *specs.Spec, _ *manager) { s.Linux.Resources.Unified["pids.max"] = " 3 " },
		"a user's": func(s *specs.Spec, _ *manager) {
			s.Process.User.UID = 7
			for i := range s.Mounts {
				if s.Mounts[i].Type == "cgroup" {
					s.Mounts[i].Options = []string{"nosuid", "noexec", "nodev", "rw"}
				}
			}
		},
	} {
		s, systemd := inScope(), &manager{version: 252}
		change(s, systemd)
		m, _ := withManager(systemd)
		if _, err := Of(s, m); err == nil {
			t.Errorf("%s is ordinary", name)
		}
	}
}

// TestScopeThatFails: what comes to nothing leaves nobody, and systemd is told to stop no scope that is not ours.
func TestScopeThatFails(t *testing.T) {
	refuses := &manager{version: 252, err: errors.New("no")}
	m, p := withManager(refuses)
	s, err := Of(inScope(), m)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.MakeGroups(); err == nil {
		t.Error("it is made")
	}
	<-p.closed
	if want := []string{"make " + s.group}; !slices.Equal(refuses.said, want) {
		t.Errorf("systemd is told %q, not %q", refuses.said, want)
	}
}

// TestScopeUnanswered: nobody else may have the ID of a process that systemd may yet take.
func TestScopeUnanswered(t *testing.T) {
	silent := &manager{version: 252, err: fmt.Errorf("it takes long: %w", systemd.ErrUnanswered), settled: make(chan error)}
	m, p := withManager(silent)
	s, err := Of(inScope(), m)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.MakeGroups(); !errors.Is(err, systemd.ErrUnanswered) {
		t.Errorf("it is made: %v", err)
	}
	s.Release()
	silent.settled <- silent.err
	select {
	case <-p.closed:
		t.Error("who holds the scope is let go before systemd has answered")
	default:
	}
	silent.settled <- nil
	<-p.closed
	if len(silent.said) != 1 {
		t.Errorf("systemd is told %q", silent.said)
	}
}

// TestScopeOfEndlessSet has sets that would take gigabytes to write out: any client of CRI can ask for one.
func TestScopeOfEndlessSet(t *testing.T) {
	for _, r := range []*lib.Resources{
		{CpusetCpus: "0-4000000000"}, {CpusetMems: "4000000000"}, {Unified: map[string]string{"cpuset.cpus": "0-4000000000"}},
	} {
		if props, err := limitProperties(r, 252); err == nil {
			t.Errorf("%+v has become %d properties", r, len(props))
		}
	}
}
