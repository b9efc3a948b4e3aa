package pinning

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/cpuset"

	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/topology"
	"github.com/berth-node/berth/agent/topology/topologytest"
	"github.com/berth-node/berth/cgroups/kube"
)

// containers is a runtime that has containers and notes where they were moved.
type containers struct {
	list  []*runtimeapi.Container
	moved map[string]*runtimeapi.LinuxContainerResources
	err   error
}

func (c *containers) add(uid, name string) {
	c.list = append(c.list, &runtimeapi.Container{
		Id: uid + "/" + name, Labels: map[string]string{spec.PodUIDLabel: uid, spec.ContainerNameLabel: name},
	})
}

func (c *containers) ListContainers(context.Context, *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: c.list}, nil
}

func (c *containers) UpdateContainerResources(_ context.Context, r *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	if c.err != nil {
		return nil, c.err
	}
	if c.moved == nil {
		c.moved = map[string]*runtimeapi.LinuxContainerResources{}
	}
	c.moved[r.GetContainerId()] = r.GetLinux()
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

// at is where a container was moved since the last time.
func (c *containers) at(uid, name string) string {
	r := c.moved[uid+"/"+name]
	delete(c.moved, uid+"/"+name)
	if r == nil {
		return "not moved"
	}
	period := ""
	if r.GetCpuPeriod() != 0 {
		period = fmt.Sprintf(" of %d", r.GetCpuPeriod())
	}
	return fmt.Sprintf("%s quota %d%s", r.GetCpusetCpus(), r.GetCpuQuota(), period)
}

type part func(*corev1.Pod)

// has is a container with limits, which are its requests; kind "init" or "sidecar", else an ordinary one.
func has(kind, name string, limits ...string) part {
	return func(p *corev1.Pod) {
		c := corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{}}}
		for _, l := range limits {
			k, v, _ := strings.Cut(l, "=")
			c.Resources.Limits[corev1.ResourceName(k)] = resource.MustParse(v)
		}
		c.Resources.Requests = c.Resources.Limits
		switch kind {
		case "sidecar":
			c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
			fallthrough
		case "init":
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		default:
			p.Spec.Containers = append(p.Spec.Containers, c)
		}
	}
}

func newPod(uid string, parts ...part) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: uid, UID: types.UID(uid)}}
	for _, fn := range parts {
		fn(p)
	}
	return p
}

func static(t *testing.T, m *topology.Machine, reserved string) Config {
	t.Helper()
	return Config{StaticCPUs: true, Reserved: parse(t, reserved), Machine: m, File: filepath.Join(t.TempDir(), "pinned.json"), Runtime: &containers{}}
}

func open(t *testing.T, c Config) *Manager {
	t.Helper()
	m, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// refused requires that a pod is refused with a reason and a message.
func refused(t *testing.T, m *Manager, pod *corev1.Pod, reason, message string, final bool) {
	t.Helper()
	r, ok := errors.AsType[*Refusal](m.Admit(pod))
	if !ok {
		t.Errorf("%s was admitted", pod.Name)
		return
	}
	if r.Reason != reason || !strings.Contains(r.Message, message) || r.Final != final {
		t.Errorf("%s was refused with %s (final %v): %s; want %s (final %v): %s", pod.Name, r.Reason, r.Final, r.Message, reason, final, message)
	}
}

func admitted(t *testing.T, m *Manager, pod *corev1.Pod) {
	t.Helper()
	if err := m.Admit(pod); err != nil {
		t.Fatalf("%s: %v", pod.Name, err)
	}
}

func wantPin(t *testing.T, m *Manager, uid, container, cpus string, exclusive bool) {
	t.Helper()
	p := m.Pin(types.UID(uid), container)
	if p.CPUs != cpus || p.Exclusive != exclusive {
		t.Errorf("%s/%s is on CPUs %s (exclusive %v), want %s (%v)", uid, container, p.CPUs, p.Exclusive, cpus, exclusive)
	}
}

func TestNothingIsPinned(t *testing.T) {
	var m *Manager
	if err := m.Admit(newPod("a", has("", "c", "cpu=1", "memory=1Gi"))); err != nil {
		t.Error(err)
	}
	if m.Pin("a", "c") != (Pin{}) || m.Exclusive("a") || m.Release("a") != nil || m.Sync(t.Context()) != nil || m.Synced(nil) != nil {
		t.Error("a manager that is none does something")
	}
}

// TestWhoIsExclusive: Guaranteed pods' containers with whole CPUs, and nobody else.
func TestWhoIsExclusive(t *testing.T) {
	m := open(t, static(t, topologytest.Machine(t, "two-sockets"), "0-1"))
	admitted(t, m, newPod("best-effort", has("", "c")))
	admitted(t, m, newPod("burstable", has("", "c", "cpu=2")))
	admitted(t, m, newPod("fraction", has("", "c", "cpu=1500m", "memory=1Gi")))
	whole := newPod("whole", has("", "c", "cpu=2", "memory=1Gi"))
	whole.Spec.Resources = &corev1.ResourceRequirements{Limits: whole.Spec.Containers[0].Resources.Limits}
	admitted(t, m, whole)
	for _, uid := range []string{"best-effort", "burstable", "fraction", "whole"} {
		wantPin(t, m, uid, "c", "0-15", false)
	}
	admitted(t, m, newPod("both", has("", "own", "cpu=2", "memory=1Gi"), has("", "some", "cpu=500m", "memory=1Gi")))
	wantPin(t, m, "both", "own", "2-3", true)
	wantPin(t, m, "both", "some", "0-1,4-15", false)
	wantPin(t, m, "fraction", "c", "0-1,4-15", false)
	if shared, exclusive, n := m.Usage(); shared != 14 || exclusive != 2 || n.CPURequests != 1 || n.CPUErrors != 0 {
		t.Errorf("usage is %d, %d, %+v", shared, exclusive, n)
	}
	if err := m.Release("both"); err != nil {
		t.Fatal(err)
	}
	wantPin(t, m, "fraction", "c", "0-15", false)
}

// TestInitContainersReuse: what an init container had its pod's containers get; what a sidecar has they do not.
func TestInitContainersReuse(t *testing.T) {
	m := open(t, static(t, topologytest.Machine(t, "two-sockets"), "0-1"))
	admitted(t, m, newPod("p", has("init", "i", "cpu=4", "memory=1Gi"), has("sidecar", "s", "cpu=2", "memory=1Gi"),
		has("", "a", "cpu=2", "memory=1Gi"), has("", "b", "cpu=2", "memory=1Gi")))
	all := cpuset.New()
	for _, c := range []string{"s", "a", "b"} {
		p := m.Pin("p", c)
		set := parse(t, p.CPUs)
		if !p.Exclusive || set.Size() != 2 || !all.Intersection(set).IsEmpty() {
			t.Errorf("%s has CPUs %s, others %s", c, p.CPUs, all)
		}
		all = all.Union(set)
	}
	if i := parse(t, m.Pin("p", "i").CPUs); i.Size() != 4 || !i.IsSubsetOf(all) {
		t.Errorf("the init container has CPUs %s, the others %s", i, all)
	}
	if _, exclusive, _ := m.Usage(); exclusive != 6 {
		t.Errorf("%d CPUs are exclusive", exclusive)
	}
}

func TestRefusals(t *testing.T) {
	machine := topologytest.Machine(t, "two-sockets")
	guaranteed := func(uid string, cpus int) *corev1.Pod {
		return newPod(uid, has("", "c", fmt.Sprintf("cpu=%d", cpus), "memory=1Gi"))
	}
	t.Run("more than there are", func(t *testing.T) {
		m := open(t, static(t, machine, "0-1"))
		admitted(t, m, guaranteed("a", 12))
		refused(t, m, guaranteed("b", 3), ReasonAdmission, "not enough cpus available to satisfy request: requested=3, available=2", false)
		refused(t, m, guaranteed("c", 15), ReasonAdmission, "requested=15, available=14", true)
		if _, exclusive, n := m.Usage(); exclusive != 12 || n.CPUErrors != 2 {
			t.Errorf("%d CPUs are exclusive, counts %+v", exclusive, n)
		}
	})
	t.Run("whole cores", func(t *testing.T) {
		c := static(t, machine, "0")
		c.CPU.FullPCPUsOnly = true
		m := open(t, c)
		refused(t, m, guaranteed("a", 3), ReasonSMT, "requested 3 cpus not multiple cpus per core = 2", true)
		admitted(t, m, guaranteed("b", 12))
		refused(t, m, guaranteed("c", 4), ReasonSMT, "available physical CPUs = 2, requested CPUs = 4, CPUs per core = 2", false)
		wantPin(t, m, "b", "c", "2-5,8-15", true)
	})
	t.Run("one node", func(t *testing.T) {
		c := static(t, machine, "0-1")
		c.Alignment = AlignSingleNode
		m := open(t, c)
		refused(t, m, guaranteed("a", 10), ReasonAffinity, "(single-numa-node): 10 CPUs of node 0: 6 free of 8, node 1: 8 free of 8", true)
		admitted(t, m, guaranteed("b", 7))
		wantPin(t, m, "b", "c", "8-14", true)
		refused(t, m, guaranteed("d", 7), ReasonAffinity, "node 0: 6 free of 8, node 1: 1 free of 8", false)
		admitted(t, m, newPod("e", has("", "c")))
		if _, _, n := m.Usage(); n.AlignErrors != 2 || n.AlignRequests != 4 {
			t.Errorf("counts %+v", n)
		}
	})
	t.Run("restricted lets in what needs both nodes", func(t *testing.T) {
		c := static(t, machine, "0-1")
		c.Alignment = AlignRestricted
		m := open(t, c)
		admitted(t, m, guaranteed("a", 10))
		refused(t, m, guaranteed("b", 8), ReasonAffinity, "8 CPUs", false)
	})
	t.Run("pod scope", func(t *testing.T) {
		c := static(t, machine, "0-1")
		c.Alignment, c.PodScope = AlignSingleNode, true
		m := open(t, c)
		two := newPod("two", has("", "a", "cpu=4", "memory=1Gi"), has("", "b", "cpu=4", "memory=1Gi"))
		admitted(t, m, two)
		wantPin(t, m, "two", "a", "8-11", true)
		wantPin(t, m, "two", "b", "12-15", true)
		refused(t, m, newPod("more", has("", "a", "cpu=4", "memory=1Gi"), has("", "b", "cpu=4", "memory=1Gi")), ReasonAffinity, "8 CPUs", false)
	})
	t.Run("the last shared CPU", func(t *testing.T) {
		c := static(t, machine, "0")
		c.CPU.StrictReservation = true
		m := open(t, c)
		admitted(t, m, newPod("sharer", has("", "c")))
		wantPin(t, m, "sharer", "c", "1-15", false)
		refused(t, m, guaranteed("all", 15), ReasonAdmission, "no CPU would be left for the containers that share", false)
		if err := m.Release("sharer"); err != nil {
			t.Fatal(err)
		}
		admitted(t, m, guaranteed("all", 15))
		refused(t, m, newPod("sharer", has("", "c")), ReasonAdmission, "no CPU would be left", false)
	})
}

// TestChangedPod: a pod that asks for something else keeps what it has until it can have it.
func TestChangedPod(t *testing.T) {
	m := open(t, static(t, topologytest.Machine(t, "two-sockets"), "0-1"))
	admitted(t, m, newPod("p", has("", "c", "cpu=2", "memory=1Gi")))
	admitted(t, m, newPod("q", has("", "c", "cpu=8", "memory=1Gi")))
	refused(t, m, newPod("p", has("", "c", "cpu=8", "memory=1Gi")), ReasonAdmission, "requested=8, available=6", false)
	wantPin(t, m, "p", "c", "2-3", true)
	admitted(t, m, newPod("p", has("", "c", "cpu=6", "memory=1Gi")))
	if got := parse(t, m.Pin("p", "c").CPUs).Size(); got != 6 {
		t.Errorf("it has %d CPUs", got)
	}
	admitted(t, m, newPod("p", has("", "c")))
	if m.Exclusive("p") {
		t.Error("a pod that asks for nothing any more has CPUs of its own")
	}
}

func TestConfiguration(t *testing.T) {
	machine := topologytest.Machine(t, "four-nodes")
	for want, c := range map[string]Config{
		"CPUs 5 are not online":    {StaticCPUs: true, Reserved: parse(t, "4-5")},
		"--reserved-cpus says":     {StaticCPUs: true},
		"needs --reserved-memory":  {StaticMemory: true},
		"NUMA node 7":              {StaticMemory: true, ReservedMemory: []NodeMemory{{Node: 7, Limits: corev1.ResourceList{"memory": resource.MustParse("1Mi")}}}},
		"which has 386M":           {StaticMemory: true, ReservedMemory: []NodeMemory{{Node: 1, Limits: corev1.ResourceList{"memory": resource.MustParse("1Gi")}}}},
		"at most 3 are allowed":    {Alignment: AlignRestricted, MaxNodes: 3},
		"requested=8, available=7": {StaticCPUs: true, ReservedCPUs: 8},
	} {
		c.Machine, c.File = machine, filepath.Join(t.TempDir(), "pinned.json")
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			if want == "which has 386M" && err != nil && strings.Contains(err.Error(), "which has") {
				continue
			}
			t.Errorf("got %v, want %s", err, want)
		}
	}
	m := open(t, Config{StaticCPUs: true, ReservedCPUs: 2, Machine: machine, File: filepath.Join(t.TempDir(), "pinned.json")})
	admitted(t, m, newPod("p", has("", "c", "cpu=5", "memory=1Mi")))
	if p := m.Pin("p", "c"); p.CPUs != "2-4,6-7" && p.CPUs != "0-3,6-7" && parse(t, p.CPUs).Size() != 5 {
		t.Errorf("pinned to %s", p.CPUs)
	}
}

// TestRestart: the next agent finds what was given, also when it was killed, and gives back what is of nobody.
func TestRestart(t *testing.T) {
	c := static(t, topologytest.Machine(t, "two-sockets"), "0-1")
	m := open(t, c)
	kept := newPod("kept", has("", "c", "cpu=2", "memory=1Gi"))
	admitted(t, m, newPod("gone", has("", "c", "cpu=2", "memory=1Gi")))
	admitted(t, m, kept)
	wantPin(t, m, "kept", "c", "4-5", true)

	m = open(t, c)
	wantPin(t, m, "kept", "c", "4-5", true)
	admitted(t, m, kept)
	wantPin(t, m, "kept", "c", "4-5", true)
	if err := m.Synced(func(uid types.UID) bool { return uid == "kept" }); err != nil {
		t.Fatal(err)
	}
	wantPin(t, m, "other", "c", "0-3,6-15", false)
	m = open(t, c)
	wantPin(t, m, "other", "c", "0-3,6-15", false)

	// Reserved now, so that the pod has to go elsewhere.
	c.Reserved = parse(t, "4-5")
	m = open(t, c)
	if m.Exclusive("kept") {
		t.Error("a pod has CPUs that are reserved")
	}
	admitted(t, m, kept)
	wantPin(t, m, "kept", "c", "0-1", true)

	// Offline now.
	c.Machine = &topology.Machine{CPUs: c.Machine.CPUs[2:], Nodes: c.Machine.Nodes}
	m = open(t, c)
	admitted(t, m, kept)
	wantPin(t, m, "kept", "c", "2-3", true)
}

func TestBrokenFile(t *testing.T) {
	c := static(t, topologytest.Machine(t, "two-sockets"), "0-1")
	for name, content := range map[string]string{
		"cut off":    `{"version":1,"pods":[{"uid":"a"`,
		"no version": `{}`,
		"bad CPUs":   `{"version":1,"pods":[{"uid":"a","containers":[{"container":"c","cpus":"x"}]}]}`,
		"bad node":   `{"version":1,"pods":[{"uid":"a","containers":[{"container":"c","memory":[{"resource":"memory","nodes":[99],"bytes":1}]}]}]}`,
		"null pod":   `{"version":1,"pods":[null]}`,
	} {
		if err := os.WriteFile(c.File, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		m := open(t, c)
		if _, exclusive, _ := m.Usage(); exclusive != 0 {
			t.Errorf("%s: something was taken over", name)
		}
		if b, err := os.ReadFile(c.File + ".bad"); err != nil || string(b) != content {
			t.Errorf("%s: the file was not put aside: %v", name, err)
		}
	}
	if err := os.WriteFile(c.File, []byte(`{"version":9}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(c); err == nil || !strings.Contains(err.Error(), "later version") {
		t.Errorf("got %v", err)
	}
}

// TestUnwritableFile: nothing is given that is not written down.
func TestUnwritableFile(t *testing.T) {
	c := static(t, topologytest.Machine(t, "two-sockets"), "0-1")
	c.File = filepath.Join(c.File, "no", "such", "directory")
	m := open(t, c)
	refused(t, m, newPod("p", has("", "c", "cpu=2", "memory=1Gi")), ReasonAdmission, "write assignments", false)
	wantPin(t, m, "p", "c", "0-15", false)
}

func TestSync(t *testing.T) {
	rt := &containers{}
	c := static(t, topologytest.Machine(t, "two-sockets"), "0-1")
	c.Runtime = rt
	m := open(t, c)
	rt.add("shared", "c")
	rt.add("own", "c")
	rt.list = append(rt.list, &runtimeapi.Container{Id: "by-hand"})
	admitted(t, m, newPod("shared", has("", "c")))
	admitted(t, m, newPod("own", has("", "c", "cpu=2", "memory=1Gi")))
	want := func(shared, own string) {
		t.Helper()
		if err := m.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := rt.at("shared", "c"); got != shared {
			t.Errorf("shared: %s, want %s", got, shared)
		}
		if got := rt.at("own", "c"); got != own {
			t.Errorf("own: %s, want %s", got, own)
		}
	}
	want("0-1,4-15 quota 0", "2-3 quota -1")
	want("not moved", "not moved")
	admitted(t, m, newPod("new", has("", "c", "cpu=4", "memory=1Gi")))
	want("0-1,8-15 quota 0", "not moved")
	if rt.moved["by-hand"] != nil {
		t.Error("a container of no pod was moved")
	}

	// One that has ended is no error, a runtime that fails is, and is asked again.
	rt.err = grpcstatus.Error(codes.NotFound, "gone")
	if err := m.Release("new"); err != nil {
		t.Fatal(err)
	}
	if err := m.Sync(t.Context()); err != nil {
		t.Error(err)
	}
	m.mover.doubt()
	rt.err = errors.New("it hurts")
	if err := m.Sync(t.Context()); err == nil {
		t.Error("no error of the runtime was told")
	}
	rt.err = nil
	want("0-1,4-15 quota 0", "2-3 quota -1")

	// What started with less than it may have now is moved.
	m.Started("shared/c", "shared", "c", &Pin{CPUs: "0"})
	select {
	case <-m.changed:
	default:
		t.Error("nobody will look after a container that started with what is outdated")
	}
}

// TestPolicyOff: an agent that pins nothing puts back what the one before it did.
func TestPolicyOff(t *testing.T) {
	rt := &containers{}
	c := static(t, topologytest.Machine(t, "two-sockets"), "0-1")
	c.Runtime = rt
	m := open(t, c)
	own := newPod("own", has("", "c", "cpu=2", "memory=1Gi"))
	admitted(t, m, own)
	rt.add("own", "c")
	rt.add("shared", "c")

	c.StaticCPUs, c.Reserved, c.Groups = false, cpuset.New(), kube.Options{PeriodUs: 20_000}
	m = open(t, c)
	if m.Exclusive("own") {
		t.Error("something is exclusive without a policy")
	}
	admitted(t, m, own)
	// Until all pods were told of nothing is forgotten.
	if err := m.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(c.File); err != nil {
		t.Error(err)
	}
	if err := m.Synced(func(types.UID) bool { return true }); err != nil {
		t.Fatal(err)
	}
	m.mover.doubt()
	if err := m.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := rt.at("own", "c"); got != "0-15 quota 40000 of 20000" {
		t.Errorf("own: %s", got)
	}
	if got := rt.at("shared", "c"); got != "0-15 quota 0" {
		t.Errorf("shared: %s", got)
	}
	if _, err := os.Stat(c.File); !os.IsNotExist(err) {
		t.Errorf("the file is still there: %v", err)
	}
	rt.moved = nil
	m.mover.doubt()
	if err := m.Sync(t.Context()); err != nil || rt.moved != nil {
		t.Errorf("moved %v (%v) when nothing is pinned", rt.moved, err)
	}
}
