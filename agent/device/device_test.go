package device

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-node/berth/agent/device/devicetest"
	"github.com/berth-node/berth/agent/pinning"
	"github.com/berth-node/berth/agent/topology/topologytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const gpu = corev1.ResourceName("example.com/gpu")

func open(t *testing.T, file string) *Manager {
	t.Helper()
	m, err := New(Config{Dir: filepath.Join(filepath.Dir(file), "sockets"), File: file, Nodes: []int{0, 1}})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// offers makes the manager know devices, "a0" being near to node 0 and "a" near to none, and "-a" not well.
func (m *Manager) offers(ids ...string) {
	k := &kind{units: map[string]unit{}, plugin: &plugin{}}
	for _, id := range ids {
		u := unit{healthy: !strings.HasPrefix(id, "-")}
		if n := id[len(id)-1]; n == '0' || n == '1' {
			u.nodes = []int{int(n - '0')}
		}
		k.units[strings.TrimPrefix(id, "-")] = u
	}
	m.inventory.kinds[gpu] = k
}

// has makes a pod of containers "NAME=COUNT", with "init:" or "sidecar:" before it.
func has(uid string, containers ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: uid, UID: types.UID(uid)}}
	for _, text := range containers {
		what, rest, ok := strings.Cut(text, ":")
		if !ok {
			what, rest = "", text
		}
		name, n, _ := strings.Cut(rest, "=")
		c := corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{gpu: resource.MustParse(n)}}}
		switch what {
		case "sidecar":
			c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
			fallthrough
		case "init":
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		default:
			p.Spec.Containers = append(p.Spec.Containers, c)
		}
	}
	return p
}

func anywhere(string) pinning.Nodes { return 0 }

// given is who of a pod has what.
func (m *Manager) given(p *corev1.Pod) string {
	var out []string
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for _, c := range list {
			for _, g := range m.Of(p.UID, c.Name) {
				var ids []string
				for _, d := range g.Devices {
					ids = append(ids, d.ID)
				}
				out = append(out, c.Name+":"+strings.Join(ids, ","))
			}
		}
	}
	return strings.Join(out, " ")
}

func TestAdmit(t *testing.T) {
	for name, tt := range map[string]struct {
		offers []string
		near   pinning.Nodes
		pod    *corev1.Pod
		want   string
	}{
		"the first ones":                   {[]string{"a", "b", "c"}, 0, has("p", "x=2"), "x:a,b"},
		"none that is not well":            {[]string{"-a", "b", "c"}, 0, has("p", "x=2"), "x:b,c"},
		"each its own":                     {[]string{"a", "b", "c"}, 0, has("p", "x=1", "y=2"), "x:a y:b,c"},
		"those of an init container again": {[]string{"a", "b"}, 0, has("p", "init:i=2", "init:j=1", "x=1", "y=1"), "i:a,b j:a x:a y:b"},
		"those of a sidecar not":           {[]string{"a", "b"}, 0, has("p", "sidecar:s=1", "x=1"), "s:a x:b"},
		"what a sidecar had of an init":    {[]string{"a", "b"}, 0, has("p", "init:i=1", "sidecar:s=1", "x=1"), "i:a s:a x:b"},
		"those that are near":              {[]string{"a0", "b1", "c1"}, pinning.NodesOf(1), has("p", "x=2"), "x:b1,c1"},
		"near to none before far":          {[]string{"a0", "b1", "c"}, pinning.NodesOf(1), has("p", "x=2"), "x:b1,c"},
		"too many":                         {[]string{"a", "-b"}, 0, has("p", "x=2"), "Requested: 2, Available: 1"},
		"of a plugin that is not there":    {nil, 0, has("p", "x=1"), "Requested: 1, Available: 0"},
	} {
		t.Run(name, func(t *testing.T) {
			m := open(t, filepath.Join(t.TempDir(), "devices.json"))
			m.offers(tt.offers...)
			err := m.Admit(tt.pod, func(string) pinning.Nodes { return tt.near })
			if short, ok := errors.AsType[*Shortage](err); ok {
				if !strings.Contains(short.Error(), tt.want) {
					t.Errorf("refused with %v, want %s", err, tt.want)
				}
				return
			}
			if got := m.given(tt.pod); err != nil || got != tt.want {
				t.Errorf("got %s (%v), want %s", got, err, tt.want)
			}
			// It is the same for ever, also when the devices are gone, and for the next agent.
			m.offers()
			if err := m.Admit(tt.pod, anywhere); err != nil {
				t.Error(err)
			}
			next := open(t, m.ledger.file)
			if err := next.Admit(tt.pod, anywhere); err != nil || next.given(tt.pod) != tt.want {
				t.Errorf("the next agent has %s (%v), want %s", next.given(tt.pod), err, tt.want)
			}
		})
	}
}

// TestElsewhere: a pod that came with a resource of nobody here goes on without it, whoever offers it later, and also
// with the next agent. One that comes then has devices of it, and one that waits for them never goes without.
func TestElsewhere(t *testing.T) {
	others := func(p *corev1.Pod) bool { return p.Name != "waits" }
	m := open(t, filepath.Join(t.TempDir(), "devices.json"))
	m.cfg.Elsewhere = others
	before, waits, later := has("before", "init:i=1", "x=2"), has("waits", "x=1"), has("later", "x=1")
	const known = corev1.ResourceName("example.com/known")
	m.inventory.kinds[known] = &kind{units: map[string]unit{"k": {healthy: true}}, plugin: &plugin{}}
	before.Spec.Containers[0].Resources.Limits[known] = resource.MustParse("1")
	if err := m.Admit(before, anywhere); err != nil || m.given(before) != "x:k" {
		t.Errorf("%v, it has %q", err, m.given(before))
	}
	if err := m.Admit(waits, anywhere); err == nil || m.Has("waits") {
		t.Errorf("a pod that waits for the plugin runs without: %v", err)
	}
	for i := range 2 {
		m.offers("a", "b")
		if err := m.Admit(before, anywhere); err != nil || m.given(before) != "x:k" || len(m.Wishes(before, "")) > 0 {
			t.Errorf("agent %d: %v, it has %q", i, err, m.given(before))
		}
		if err := m.Admit(later, anywhere); err != nil || m.given(later) != "x:a" {
			t.Errorf("agent %d: %v, it has %q", i, err, m.given(later))
		}
		m = open(t, m.ledger.file)
		m.cfg.Elsewhere = others
	}
	// A resource whose plugin is gone for good was the node's.
	m.offers("a")
	k := m.inventory.kinds[gpu]
	k.plugin = nil
	m.inventory.expire(gpu, k)
	if err := m.Admit(has("late", "x=1"), anywhere); err == nil {
		t.Error("a pod runs without the devices of a plugin that is gone")
	}
	if err := m.Release("before"); err != nil || m.Has("before") {
		t.Error(err)
	}
}

func TestRelease(t *testing.T) {
	m := open(t, filepath.Join(t.TempDir(), "devices.json"))
	m.offers("a", "b")
	one, two, three := has("one", "x=1"), has("two", "x=1"), has("three", "x=2")
	for _, p := range []*corev1.Pod{one, two} {
		if err := m.Admit(p, anywhere); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Admit(three, anywhere); err == nil || m.Has("three") {
		t.Fatalf("two of two devices are given away, and still there are two: %v", err)
	}
	if err := m.Release("one"); err != nil {
		t.Fatal(err)
	}
	if err := open(t, m.ledger.file).Synced(func(types.UID) bool { return false }); err != nil {
		t.Fatal(err)
	}
	next := open(t, m.ledger.file)
	next.offers("a", "b")
	if err := next.Admit(three, anywhere); err != nil {
		t.Errorf("after all were given back: %v", err)
	}
}

// TestWriteFails gives nothing that is not written down.
func TestWriteFails(t *testing.T) {
	m := open(t, filepath.Join(t.TempDir(), "devices.json"))
	m.offers("a")
	m.ledger.file = "/dev/null/devices.json"
	if err := m.Admit(has("p", "x=1"), anywhere); err == nil || m.Has("p") {
		t.Errorf("it was given without a record: %v", err)
	}
}

func TestHints(t *testing.T) {
	m := open(t, filepath.Join(t.TempDir(), "devices.json"))
	hints := func(pod *corev1.Pod, container string) string {
		var out []string
		for _, w := range m.Wishes(pod, container) {
			for _, h := range w.Hints {
				out = append(out, fmt.Sprintf("%d:%t", h.Nodes, h.Preferred))
			}
			out = append(out, w.What)
		}
		return strings.Join(out, " ")
	}
	m.offers("a", "b")
	if got := hints(has("p", "x=1"), "x"); got != "" {
		t.Errorf("devices that are near to no node wish for %s", got)
	}
	m.offers("a0", "b1", "c1")
	for _, tt := range []struct{ container, want string }{
		{"x=1", "1:true 2:true 3:false 1 example.com/gpu of 3 free"},
		{"x=2", "2:true 3:false 2 example.com/gpu of 3 free"},
		{"x=3", "3:true 3 example.com/gpu of 3 free"},
		{"x=4", "4 example.com/gpu of 3 free"},
	} {
		if got := hints(has("p", tt.container), "x"); got != tt.want {
			t.Errorf("%s wishes for %s, want %s", tt.container, got, tt.want)
		}
	}
	if got, want := hints(has("p", "init:i=1", "x=1", "y=1"), ""), "2:true 3:false 2 example.com/gpu of 3 free"; got != want {
		t.Errorf("the pod as a whole wishes for %s, want %s", got, want)
	}
	if err := m.Admit(has("q", "x=1"), func(string) pinning.Nodes { return 2 }); err != nil {
		t.Fatal(err)
	}
	if got, want := hints(has("p", "x=2"), "x"), "3:false 2 example.com/gpu of 2 free"; got != want {
		t.Errorf("with a device of node 1 given away x wishes for %s, want %s", got, want)
	}
	if got := hints(has("q", "x=1"), "x"); got != "" {
		t.Errorf("a pod that has its devices wishes for %s", got)
	}
}

// TestAlignment has CPUs come from where the device is.
func TestAlignment(t *testing.T) {
	for _, scope := range []bool{false, true} {
		m := open(t, filepath.Join(t.TempDir(), "devices.json"))
		m.offers("a1", "b1")
		pins, err := pinning.New(pinning.Config{
			StaticCPUs: true, ReservedCPUs: 2, Alignment: pinning.AlignSingleNode, PodScope: scope,
			Machine: topologytest.Machine(t, "two-sockets"), File: filepath.Join(t.TempDir(), "pinned.json"), Devices: m,
		})
		if err != nil {
			t.Fatal(err)
		}
		p := has("p", "x=1")
		limits := p.Spec.Containers[0].Resources.Limits
		limits[corev1.ResourceCPU], limits[corev1.ResourceMemory] = resource.MustParse("2"), resource.MustParse("1Gi")
		p.Spec.Containers[0].Resources.Requests = limits
		if err := pins.Admit(p); err != nil {
			t.Fatal(err)
		}
		cpus, _ := pins.Of("p", "x")
		if near := topologytest.Machine(t, "two-sockets").InNode(1).List(); len(cpus) != 2 || !slices.Contains(near, cpus[0]) || !slices.Contains(near, cpus[1]) {
			t.Errorf("a device of node 1 with CPUs %v (pod scope: %t)", cpus, scope)
		}
		if got := pins.Near("p", "x"); got != pinning.NodesOf(1) {
			t.Errorf("the device is to come from nodes %b", got)
		}
		// Two devices of two nodes are not to be had from one; with others they might be.
		m.offers("a0", "b1")
		err = pins.Admit(has("q", "x=2"))
		if r, ok := errors.AsType[*pinning.Refusal](err); !ok || r.Reason != pinning.ReasonAffinity || r.Final || !strings.Contains(r.Message, "2 example.com/gpu of 2 free") {
			t.Errorf("what no node has is refused with %v", err)
		}
	}
}

// running runs a manager and a plugin until the test ends.
func running(t *testing.T, m *Manager, p *devicetest.Plugin) {
	t.Helper()
	p.Dir = m.cfg.Dir
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- p.Run(ctx) }()
	go func() { ended <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
	for {
		if capacity, _ := m.Resources(); len(capacity) > 0 {
			k, _ := m.inventory.plugin(gpu)
			if q := capacity[gpu]; k != nil && q.Value() > 0 {
				return
			}
		}
		<-m.Changed()
	}
}

// TestAllocate asks a plugin that fails, then an agent after the first one asks again: for the same devices, until it
// has answered.
func TestAllocate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "devices.json")
	p := &devicetest.Plugin{Resource: string(gpu), Options: &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: true, PreStartRequired: true}}
	p.Set(devicetest.Healthy("a", "b", "c")...)
	p.Prefer = func([]string, []string, int) []string { return []string{"c", "nonsense"} }
	fail := true
	p.Answer = func([]string) (*pluginapi.ContainerAllocateResponse, error) {
		if fail {
			return nil, errors.New("it is broken")
		}
		return &pluginapi.ContainerAllocateResponse{Envs: map[string]string{"A": "1"}}, nil
	}
	pod := has("p", "init:i=1", "x=2")
	t.Run("a plugin that fails", func(t *testing.T) {
		m := open(t, file)
		running(t, m, p)
		if err := m.Admit(pod, anywhere); err != nil {
			t.Fatal(err)
		}
		if err := m.Allocate(t.Context(), pod); err == nil || !strings.Contains(err.Error(), "it is broken") {
			t.Errorf("the plugin fails, and allocating says %v", err)
		}
		if _, err := m.Start(t.Context(), pod, &pod.Spec.Containers[0]); err == nil {
			t.Error("a container starts without its devices")
		}
	})
	fail = false
	m := open(t, file)
	running(t, m, p)
	if got := m.given(pod); got != "i:c x:a,b" {
		t.Errorf("the next agent has %s", got)
	}
	for range 2 { // the second time there is nothing left to ask
		if err := m.Allocate(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	// The init container's device is the other's too, as it must be.
	if got := fmt.Sprint(m.given(pod), p.Allocated()); got != "i:c x:c,a[[c] [c] [c a]]" {
		t.Errorf("devices and calls are %s", got)
	}
	answers, err := m.Start(t.Context(), pod, &pod.Spec.Containers[0])
	if err != nil || len(answers) != 1 || answers[0].GetEnvs()["A"] != "1" {
		t.Errorf("the container gets %v (%v)", answers, err)
	}
	if got := fmt.Sprint(p.Started()); got != "[[c a]]" {
		t.Errorf("before the start the plugin was asked for %s", got)
	}
}

// TestGrace lets a plugin's devices be the node's a while longer than the plugin is there.
func TestGrace(t *testing.T) {
	m := open(t, filepath.Join(t.TempDir(), "devices.json"))
	m.inventory.grace = 1 // over at once
	p := &devicetest.Plugin{Resource: string(gpu)}
	p.Set(devicetest.Healthy("a")...)
	running(t, m, p)
	m.Deregister(string(gpu), "/another/socket")
	if _, err := m.inventory.plugin(gpu); err != nil {
		t.Fatal("a plugin was let go by another's socket")
	}
	k, err := m.inventory.plugin(gpu)
	if err != nil {
		t.Fatal(err)
	}
	m.Deregister(string(gpu), k.socket)
	for {
		if capacity, _ := m.Resources(); len(capacity) == 0 {
			return
		}
		<-m.Changed()
	}
}

func TestRegister(t *testing.T) {
	m := open(t, filepath.Join(t.TempDir(), "devices.json"))
	defer m.plugins.close()
	for _, tt := range []struct{ version, endpoint, resource, want string }{
		{"v1alpha", "a.sock", "example.com/a", "v1beta1"},
		{"v1beta1", "../a.sock", "example.com/a", "must be the name of the plugin's socket"},
		{"v1beta1", "kubelet.sock", "example.com/a", "must be the name of the plugin's socket"},
		{"v1beta1", "a.sock", "cpu", "DOMAIN/NAME"},
		{"v1beta1", "a.sock", "kubernetes.io/a", "DOMAIN/NAME"},
		{"v1beta1", "a.sock", "example.com/a b", "resource name"},
	} {
		err := m.plugins.register(&pluginapi.RegisterRequest{Version: tt.version, Endpoint: tt.endpoint, ResourceName: tt.resource})
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v is refused with %v", tt, err)
		}
	}
}

// TestSecondAgent is refused, and takes nothing away from the first.
func TestSecondAgent(t *testing.T) {
	m := open(t, filepath.Join(t.TempDir(), "devices.json"))
	p := &devicetest.Plugin{Resource: string(gpu)}
	p.Set(devicetest.Healthy("a")...)
	running(t, m, p)
	if err := open(t, m.ledger.file).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "another agent") {
		t.Errorf("a second agent on the sockets says %v", err)
	}
	if _, err := m.inventory.plugin(gpu); err != nil {
		t.Error(err)
	}
}

func TestBadJournal(t *testing.T) {
	file := filepath.Join(t.TempDir(), "devices.json")
	for _, data := range []string{"", "{", `{"version":1,"pods":[null]}`, `{"version":1,"pods":[{"uid":"a","containers":[{"held":[{"devices":[{"id":"a","nodes":[64]}]}]}]}]}`, `{"version":1,"pods":[{"uid":"a","containers":[{"held":[{"response":"AAA="}]}]}]}`} {
		if err := os.WriteFile(file, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		open(t, file)
		if _, err := os.Stat(file + ".bad"); err != nil {
			t.Errorf("%q is not put aside: %v", data, err)
		}
		os.Remove(file + ".bad")
	}
	if err := os.WriteFile(file, []byte(`{"version":2}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{Dir: t.TempDir(), File: file}); err == nil || !strings.Contains(err.Error(), "later version") {
		t.Errorf("the file of a later version: %v", err)
	}
}

func FuzzJournal(f *testing.F) {
	f.Add([]byte(`{"version":1,"pods":[{"uid":"a","containers":[{"container":"c","held":[{"resource":"example.com/gpu","devices":[{"id":"a","nodes":[1]}],"allocated":true,"response":"CgYKAUESATE="}]}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		file := filepath.Join(t.TempDir(), "devices.json")
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := New(Config{Dir: t.TempDir(), File: file})
		if err != nil {
			return
		}
		m.offers("a", "b1")
		for _, a := range slices.Clone(m.ledger.pods) {
			m.Health(a.UID)
			for _, g := range a.Containers {
				c := corev1.Container{Name: g.Container}
				_, _ = m.Start(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: a.UID}}, &c)
			}
		}
		_ = m.Admit(has("p", "x=1"), anywhere)
	})
}

// TestSocketIsMadeAgain has somebody remove the socket that plugins register at: plugins that come after that are taken
// on, and those that were there are again.
func TestSocketIsMadeAgain(t *testing.T) {
	m := open(t, filepath.Join(t.TempDir(), "devices.json"))
	p := &devicetest.Plugin{Resource: string(gpu)}
	p.Set(devicetest.Healthy("a")...)
	running(t, m, p)
	if err := os.Remove(filepath.Join(m.cfg.Dir, SocketName)); err != nil {
		t.Fatal(err)
	}
	other := &devicetest.Plugin{Resource: "example.com/other", Dir: m.cfg.Dir}
	other.Set(devicetest.Healthy("b")...)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- other.Run(ctx) }()
	for {
		capacity, _ := m.Resources()
		first, second := capacity[gpu], capacity["example.com/other"]
		if first.Value() == 1 && second.Value() == 1 {
			break
		}
		<-m.Changed()
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
