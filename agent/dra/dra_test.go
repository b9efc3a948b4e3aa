package dra

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	healthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"

	"github.com/berth-node/berth/agent/dra/dratest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const gpus = "gpu.example.com"

// house is an agent's manager that can be killed, with a directory.
type house struct {
	*Manager
	t    *testing.T
	dir  string
	boot string
	end  func()
}

func newHouse(t *testing.T) *house {
	t.Helper()
	h := &house{t: t, dir: t.TempDir(), boot: "one", end: func() {}}
	h.restart()
	t.Cleanup(func() { h.end() })
	return h
}

// restart is what a kill and a new start come to. Drivers have to be registered again.
func (h *house) restart() {
	h.t.Helper()
	h.end()
	m, err := New(Config{File: filepath.Join(h.dir, "claims.json"), Boot: h.boot, Node: "node", Labels: func() map[string]string { return map[string]string{"rack": "7"} }})
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	h.Manager, h.end = m, sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			h.t.Error(err)
		}
	})
}

// drive runs a driver whose claims have the device of their name.
func (h *house) drive(d *dratest.Driver) (stop func()) {
	h.t.Helper()
	if d.Registry = filepath.Join(h.dir, "registry"); d.Name == "" {
		d.Name = gpus
	}
	d.CDI = filepath.Join(h.dir, "cdi")
	d.Devices = func(c *drav1.Claim) []dratest.Device {
		return []dratest.Device{{Request: "r", Pool: "node", Name: c.GetName(), Env: []string{"GPU=" + c.GetName()}}}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			h.t.Error(err)
		}
	})
	h.t.Cleanup(stop)
	return stop
}

func (h *house) register(d *dratest.Driver) {
	h.t.Helper()
	services := d.Services
	if len(services) == 0 {
		services = []string{drav1.DRAPluginService}
	}
	if err := h.Register(d.Name, filepath.Join(h.dir, "registry", d.Name+"-reg.sock"), services); err != nil {
		h.t.Fatal(err)
	}
	// A plugin is registered by a call on its socket, so it listens by then.
	for p, _ := h.drivers.last(d.Name); ; time.Sleep(time.Millisecond) {
		if _, err := p.client.NodePrepareResources(h.t.Context(), &drav1.NodePrepareResourcesRequest{}); err == nil {
			return
		}
	}
}

// wants makes a pod whose container names claims, "NAME" or "NAME/REQUEST".
func wants(uid string, claims ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: uid, UID: types.UID(uid)}}
	c := corev1.Container{Name: "c"}
	for _, text := range claims {
		name, request, _ := strings.Cut(text, "/")
		c.Resources.Claims = append(c.Resources.Claims, corev1.ResourceClaim{Name: name, Request: request})
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: name, ResourceClaimName: &name})
	}
	p.Spec.Containers = []corev1.Container{c}
	return p
}

// claimOf is a claim with a device of each of the drivers, for request r.
func claimOf(name string, drivers ...string) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}}
	c.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: "r"}}
	c.Status.Allocation = &resourcev1.AllocationResult{}
	for _, d := range drivers {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourcev1.DeviceRequestAllocationResult{Request: "r", Driver: d, Pool: "node", Device: name})
	}
	return c
}

// among finds claims by their names.
func among(all ...*resourcev1.ResourceClaim) Lookup {
	return func(e *corev1.PodResourceClaim) (*resourcev1.ResourceClaim, error) {
		for _, c := range all {
			if c.Name == *e.ResourceClaimName {
				return c, nil
			}
		}
		return nil, fmt.Errorf("resourceclaim %q not found", *e.ResourceClaimName)
	}
}

var nothing = among()

func (h *house) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *house) refused(err error, want string) {
	h.t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		h.t.Errorf("got %v, want %q", err, want)
	}
}

func (h *house) asked(d *dratest.Driver, want ...string) {
	h.t.Helper()
	if got := d.Calls(); !slices.Equal(got, want) {
		h.t.Errorf("the driver was asked to %q, want %q", got, want)
	}
}

func (h *house) empty() {
	h.t.Helper()
	b, err := os.ReadFile(filepath.Join(h.dir, "claims.json"))
	if err != nil || !strings.Contains(string(b), `"claims":[]`) {
		h.t.Errorf("the file says %s (%v)", b, err)
	}
	if left, _ := os.ReadDir(filepath.Join(h.dir, "cdi")); len(left) > 0 {
		h.t.Errorf("there are CDI files %v", left)
	}
}

// TestShared has a claim of two pods prepared once, kept over a restart, and unprepared after the second one.
func TestShared(t *testing.T) {
	h := newHouse(t)
	d := &dratest.Driver{}
	h.drive(d)
	find := among(claimOf("a", gpus), claimOf("b", gpus))
	one, two := wants("one", "a"), wants("two", "a", "b/r")
	h.refused(h.Prepare(t.Context(), one, find), gpus+" is not registered")
	h.register(d)
	h.must(h.Prepare(t.Context(), one, find))
	h.must(h.Prepare(t.Context(), one, nothing)) // what it has it keeps
	h.must(h.Prepare(t.Context(), two, find))
	h.asked(d, "prepare default/a", "prepare default/b")
	h.restart() // without the driver
	h.must(h.Prepare(t.Context(), two, nothing))
	cdi, err := h.CDI(two, &two.Spec.Containers[0])
	if want := []string{gpus + "/claim=uid-a-a", gpus + "/claim=uid-b-b"}; err != nil || !slices.Equal(cdi, want) {
		t.Errorf("the container gets %v (%v)", cdi, err)
	}
	if got := h.Dynamic(two, "c"); len(got) != 2 || got[1].GetClaimName() != "b" || got[1].GetClaimResources()[0].GetCdiDevices()[0].GetName() != cdi[1] {
		t.Errorf("the pod-resources API tells of %v", got)
	}
	h.must(h.Release(t.Context(), "one"))
	h.must(h.Release(t.Context(), "one"))
	h.refused(h.Release(t.Context(), "two"), gpus+" is not registered")
	h.register(d)
	h.must(h.Release(t.Context(), "two"))
	h.asked(d, "prepare default/a", "prepare default/b", "unprepare default/a", "unprepare default/b")
	h.empty()
}

// TestKilled has the agent die between the record and the driver's answer, and in the middle of the end.
func TestKilled(t *testing.T) {
	h := newHouse(t)
	broken := errors.New("on fire")
	d := &dratest.Driver{}
	d.Answer = func(context.Context, string, *drav1.Claim) error { return broken }
	h.drive(d)
	h.register(d)
	find := among(claimOf("a", gpus))
	pod := wants("one", "a")
	h.refused(h.Prepare(t.Context(), pod, find), "on fire")
	if _, err := h.CDI(pod, &pod.Spec.Containers[0]); err == nil {
		t.Error("a container gets devices that are not prepared")
	}
	h.restart()
	// It may have been prepared, so that it is to be unprepared.
	h.refused(h.Release(t.Context(), "one"), "is not registered")
	h.register(d)
	h.refused(h.Release(t.Context(), "one"), "on fire")
	h.restart()
	h.register(d)
	// Another pod comes while the end is not done: the claim is prepared again.
	d.Answer = nil
	h.must(h.Prepare(t.Context(), wants("two", "a"), find))
	h.must(h.Release(t.Context(), "one"))
	h.must(h.Release(t.Context(), "two"))
	h.asked(d, "prepare default/a", "unprepare default/a", "prepare default/a", "unprepare default/a")
	h.empty()
}

// TestBoot has everything prepared again after the machine was started again: CDI files are in memory.
func TestBoot(t *testing.T) {
	h := newHouse(t)
	d := &dratest.Driver{Services: []string{drav1beta1.DRAPluginService}}
	h.drive(d)
	h.register(d)
	find := among(claimOf("a", gpus))
	h.must(h.Prepare(t.Context(), wants("one", "a"), find))
	h.boot = "two"
	h.restart()
	h.register(d)
	h.must(h.Prepare(t.Context(), wants("one", "a"), nothing))
	h.asked(d, "prepare default/a", "prepare default/a")
	h.must(h.Release(t.Context(), "one"))
	h.empty()
}

// TestGone has claims of pods that nobody knows any more unprepared, as soon as the driver is there.
func TestGone(t *testing.T) {
	h := newHouse(t)
	unprepared := make(chan struct{}, 1)
	d := &dratest.Driver{}
	d.Answer = func(_ context.Context, call string, _ *drav1.Claim) error {
		if call == "unprepare" {
			unprepared <- struct{}{}
		}
		return nil
	}
	h.drive(d)
	h.register(d)
	h.must(h.Prepare(t.Context(), wants("one", "a"), among(claimOf("a", gpus))))
	// A driver that never came keeps nobody.
	h.refused(h.Prepare(t.Context(), wants("two", "b"), among(claimOf("b", "none.example.com"))), "none.example.com is not registered")
	h.must(h.Release(t.Context(), "two"))
	h.restart()
	h.must(h.Synced(func(uid types.UID) bool { return false }))
	h.register(d)
	<-unprepared
	for len(h.Left()) > 0 {
		<-h.Freed()
	}
	h.empty()
}

// TestComes has a pod come while the claim is being unprepared for the last one: it waits, and has it prepared again.
func TestComes(t *testing.T) {
	h := newHouse(t)
	ending, goOn := make(chan struct{}), make(chan struct{})
	d := &dratest.Driver{}
	d.Answer = func(_ context.Context, call string, _ *drav1.Claim) error {
		if call == "unprepare" {
			ending <- struct{}{}
			<-goOn
		}
		return nil
	}
	h.drive(d)
	h.register(d)
	find := among(claimOf("a", gpus))
	h.must(h.Prepare(t.Context(), wants("one", "a"), find))
	var wait sync.WaitGroup
	wait.Go(func() { h.must(h.Release(t.Context(), "one")) })
	<-ending
	came := wants("two", "a")
	wait.Go(func() { h.must(h.Prepare(t.Context(), came, find)) })
	for !h.Has("two") {
		time.Sleep(time.Millisecond)
	}
	if _, err := h.CDI(came, &came.Spec.Containers[0]); err == nil {
		t.Error("the pod that comes has what is being unprepared")
	}
	close(goOn)
	wait.Wait()
	h.asked(d, "prepare default/a", "unprepare default/a", "prepare default/a")
	if cdi, err := h.CDI(came, &came.Spec.Containers[0]); len(cdi) != 1 {
		t.Errorf("the pod that came has %v (%v)", cdi, err)
	}
	go func() { <-ending }()
	h.must(h.Release(t.Context(), "two"))
	h.empty()
}

// TestTwoDrivers has one of two refuse: the other is not asked again, and both are told of the end.
func TestTwoDrivers(t *testing.T) {
	h := newHouse(t)
	well := false
	a, b := &dratest.Driver{}, &dratest.Driver{Name: "nic.example.com"}
	b.Answer = func(context.Context, string, *drav1.Claim) error {
		if well {
			return nil
		}
		return errors.New("not today")
	}
	h.drive(a)
	h.drive(b)
	h.register(a)
	h.register(b)
	pod, find := wants("one", "a"), among(claimOf("a", gpus, b.Name))
	h.refused(h.Prepare(t.Context(), pod, find), "NodePrepareResources of DRA driver nic.example.com failed for resourceclaim \"default/a\": not today")
	well = true
	h.must(h.Prepare(t.Context(), pod, find))
	h.asked(a, "prepare default/a")
	h.asked(b, "prepare default/a", "prepare default/a")
	h.must(h.Release(t.Context(), "one"))
	h.asked(a, "prepare default/a", "unprepare default/a")
	h.empty()
}

// TestMended has the allocation of a claim corrected while pods wait for it, also when a driver has prepared it by
// then.
func TestMended(t *testing.T) {
	h := newHouse(t)
	d := &dratest.Driver{}
	h.drive(d)
	h.register(d)
	one, two := wants("one", "a"), wants("two", "a")
	wrong, right := among(claimOf("a", gpus, "typo.example.com")), among(claimOf("a", gpus))
	h.refused(h.Prepare(t.Context(), one, wrong), "typo.example.com is not registered")
	h.refused(h.Prepare(t.Context(), two, wrong), "typo.example.com is not registered")
	h.restart()
	h.register(d)
	h.refused(h.Prepare(t.Context(), one, right), "has changed while it is in use by pods default/two")
	h.must(h.Prepare(t.Context(), two, right))
	h.must(h.Prepare(t.Context(), one, right))
	h.asked(d, "prepare default/a", "unprepare default/a", "prepare default/a")
	h.must(h.Prepare(t.Context(), one, wrong)) // it has what it has
	h.must(h.Release(t.Context(), "one"))
	h.must(h.Release(t.Context(), "two"))
	h.empty()

	other := claimOf("a", gpus)
	other.UID = "another-spec"
	h.refused(h.Prepare(t.Context(), one, wrong), "typo.example.com is not registered")
	h.must(h.Prepare(t.Context(), one, among(other)))
	h.must(h.Release(t.Context(), "one"))
	h.empty()
}

func TestReserve(t *testing.T) {
	h := newHouse(t)
	d := &dratest.Driver{}
	h.drive(d)
	h.register(d)
	a := claimOf("a", gpus)
	h.must(h.Prepare(t.Context(), wants("one", "a"), among(a)))

	alter := func(name string, change func(*resourcev1.ResourceClaim)) Lookup {
		c := claimOf(name, gpus)
		change(c)
		return among(c)
	}
	selector := func(value string) *corev1.NodeSelector {
		return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "rack", Operator: corev1.NodeSelectorOpIn, Values: []string{value}}},
		}}}
	}
	first := func(c *resourcev1.ResourceClaim) *resourcev1.DeviceRequestAllocationResult {
		return &c.Status.Allocation.Devices.Results[0]
	}
	for _, tt := range []struct {
		entry string
		find  Lookup
		want  string
	}{
		{"b", nothing, `"b" not found`},
		{"b", alter("b", func(c *resourcev1.ResourceClaim) { c.Status.Allocation.NodeSelector = selector("8") }), "does not match node node"},
		{"b/x", alter("b", func(*resourcev1.ResourceClaim) {}), `it has no request "x", which container "c" names in resources.claims; it has ["r"]`},
		{"b", alter("b", func(c *resourcev1.ResourceClaim) { first(c).Device = "a" }), `device gpu.example.com/node/a is allocated to resourceclaim "default/a" too, which is in use by pods default/one`},
		{"b", alter("b", func(c *resourcev1.ResourceClaim) { c.UID = "uid-a" }), `its uid uid-a is that of resourceclaim "default/a"`},
		{"a", alter("a", func(c *resourcev1.ResourceClaim) { first(c).Device = "other" }), "its allocation has changed while it is in use by pods default/one"},
	} {
		h.refused(h.Prepare(t.Context(), wants("two", tt.entry), tt.find), tt.want)
		if h.Has("two") {
			t.Errorf("%s: the pod has something all the same", tt.want)
		}
	}
	h.asked(d, "prepare default/a")
	for i, change := range []func(*resourcev1.ResourceClaim){
		func(c *resourcev1.ResourceClaim) { c.Status.Allocation.NodeSelector = selector("7") },
		func(c *resourcev1.ResourceClaim) { first(c).Device, first(c).AdminAccess = "a", new(true) },
		func(c *resourcev1.ResourceClaim) {
			first(c).SkipNodeOperations = []resourcev1.SkipNodeOperation{resourcev1.SkipNodeOperationAll}
		},
		func(c *resourcev1.ResourceClaim) { c.Status.Allocation.Devices.Results = nil },
	} {
		name := fmt.Sprintf("well-%d", i)
		h.must(h.Prepare(t.Context(), wants(name, name), alter(name, change)))
		h.must(h.Release(t.Context(), types.UID(name)))
	}
	h.asked(d, "prepare default/a", "prepare default/well-0", "unprepare default/well-0", "prepare default/well-1", "unprepare default/well-1")
	// The device is free again when the claim is.
	h.must(h.Release(t.Context(), "one"))
	h.must(h.Prepare(t.Context(), wants("two", "b"), alter("b", func(c *resourcev1.ResourceClaim) { first(c).Device = "a" })))
}

func TestRegister(t *testing.T) {
	h := newHouse(t)
	for _, tt := range []struct {
		name     string
		versions []string
		want     string
	}{
		{"gpu_x", []string{drav1.DRAPluginService}, `driver name "gpu_x"`},
		{strings.Repeat("x", 64), []string{drav1.DRAPluginService}, "at most 63 characters"},
		{gpus, []string{"1.0.0", healthv1alpha1.DRAResourceHealthService}, `must have "v1.DRAPlugin" or "v1beta1.DRAPlugin"`},
		{gpus, nil, "are not spoken here"},
	} {
		h.refused(h.Register(tt.name, "/x", tt.versions), tt.want)
	}
	// While a driver is updated there are two: the last one is asked, and the other one when that has gone.
	for _, socket := range []string{"/a", "/b", "/b"} {
		h.must(h.Register(gpus, socket, []string{drav1.DRAPluginService}))
	}
	for _, want := range []string{"/b", "/b", "/a"} {
		p, err := h.drivers.last(gpus)
		if err != nil || p.socket != want {
			t.Errorf("got %v (%v), want %s", p, err, want)
		}
		h.Deregister(gpus, want)
	}
	if _, err := h.drivers.last(gpus); err == nil {
		t.Error("a plugin that has gone is asked")
	}
}
