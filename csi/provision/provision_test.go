package provision

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/berth-node/berth/csi"
	"github.com/berth-node/berth/csi/csitest"
	"github.com/berth-node/berth/csi/node"
)

// house is a node with one driver.
type house struct {
	t      *testing.T
	driver *csitest.Driver
	dir    string
	grace  time.Duration
	start  time.Time
	clock  atomic.Int64 // that has passed
	ticks  bool         // each look at the clock is a minute later

	drivers *csi.Drivers
	m       *Manager
	stop    func()
	changed chan struct{}

	mu       sync.Mutex
	pods     []node.Pod
	expanded []node.Expansion
	secrets  map[string]map[string]string

	unreadable error
	recorded   func() // called after each change of a record, by who goes on then
	events     []Event
}

func (h *house) Users(string, string) []node.Pod {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.pods)
}

func (h *house) Unreadable(string, string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.unreadable
}

func (h *house) Expand(_ context.Context, e node.Expansion) (int64, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.expanded = append(h.expanded, e)
	return e.Bytes, nil
}

func (h *house) secret(namespace, name string) (map[string]string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s, ok := h.secrets[namespace+"/"+name]; ok {
		return s, nil
	}
	return nil, errors.New("there is none")
}

func newHouse(t *testing.T, o csitest.Options) *house {
	t.Helper()
	h := &house{
		t: t, dir: t.TempDir(), grace: time.Hour, start: time.Unix(1e9, 0), changed: make(chan struct{}, 1), secrets: map[string]map[string]string{},
	}
	h.driver = csitest.Start(t, o)
	h.open()
	t.Cleanup(func() { h.stop() })
	return h
}

// open starts an agent.
func (h *house) open() {
	h.t.Helper()
	h.drivers = csi.NewDrivers(csi.Config{})
	r := csi.Registration{Name: h.driver.Options().Name, Endpoint: h.driver.Options().Socket, Versions: []string{"1.0.0"}}
	for h.drivers.Register(h.t.Context(), r) != nil && h.t.Context().Err() == nil { // the driver may be starting
		time.Sleep(time.Millisecond)
	}
	m, err := New(Config{
		Dir: h.dir, Drivers: h.drivers, Node: h, Grace: h.grace, Secret: h.secret,
		Changed: func(Kind, Ref) {
			if h.recorded != nil {
				h.recorded()
			}
			select {
			case h.changed <- struct{}{}:
			default:
			}
		},
		Event: func(e Event) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.events = append(h.events, e)
		},
		Now: func() time.Time {
			if h.ticks {
				h.clock.Add(int64(time.Minute))
			}
			return h.start.Add(time.Duration(h.clock.Load()))
		},
	})
	if err != nil {
		h.t.Fatal(err)
	}
	h.m = m
	ctx, cancel := context.WithCancel(h.t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = m.Run(ctx) }()
	h.stop = func() { cancel(); <-ended; h.drivers.Close() }
}

// pass lets time pass, in steps in which the agent looks.
func (h *house) pass(d time.Duration) {
	for ; d > 0; d -= look {
		h.clock.Add(int64(min(d, look)))
		h.settle()
	}
}

// settle has everything be looked at, and returns when nothing goes on any more.
func (h *house) settle() {
	h.t.Helper()
	h.m.mu.Lock()
	for _, i := range h.m.items {
		i.soon()
	}
	h.m.rouse()
	h.m.mu.Unlock()
	h.quiet()
}

// quiet returns when nothing goes on any more. What has failed waits for its time.
func (h *house) quiet() {
	h.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		h.m.mu.Lock()
		quiet := true
		for _, i := range h.m.items {
			quiet = quiet && !i.busy && !i.again && i.due != time.Unix(1, 0)
		}
		h.m.mu.Unlock()
		if quiet {
			return
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("it goes on: %+v", h.m.List())
		}
		time.Sleep(time.Millisecond)
	}
}

func (h *house) want(volumes, snapshots []Claim) {
	h.m.Want(volumes, snapshots, nil)
	h.quiet() // and not looked at once more: what has failed is to have failed once
}

func (h *house) volume(name string) State {
	h.t.Helper()
	return h.state(Volume, name)
}

func (h *house) state(kind Kind, name string) State {
	h.t.Helper()
	s, ok := h.m.Get(kind, Ref{"default", name})
	if !ok {
		h.t.Fatalf("there is no %s %s", kind, name)
	}
	return s
}

func (h *house) volumes(want ...string) {
	h.t.Helper()
	if got := slices.Sorted(maps.Keys(h.driver.State().Volumes)); !slices.Equal(got, want) {
		h.t.Fatalf("the driver has %q, and should have %q", got, want)
	}
}

func claim(name string) Claim {
	return Claim{
		Ref: Ref{"default", name}, UID: "uid-" + name, Bytes: 1 << 20, Class: Class{Name: "fast", Driver: "csitest.berth.node"},
		AccessModes: []node.AccessMode{node.ReadWriteOnce},
	}
}

func TestGrace(t *testing.T) {
	h := newHouse(t, csitest.Options{})
	h.want([]Claim{claim("a")}, nil)
	s := h.volume("a")
	if !s.Ready || s.Handle != "v-pvc-uid-a" || s.Bytes != 1<<20 || s.Context["made-for"] != "pvc-uid-a" {
		t.Fatalf("got %+v", s)
	}
	file := filepath.Join(h.driver.Data(s.Handle), "precious")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.want(nil, nil)
	h.pass(59 * time.Minute)
	if s := h.volume("a"); !s.Missing || s.Left <= 0 {
		t.Fatalf("got %+v", s)
	}
	// A restart, and whatever time passes without an agent, does not count.
	h.stop()
	h.clock.Add(int64(48 * time.Hour))
	h.open()
	h.want(nil, nil)
	h.volumes("v-pvc-uid-a")
	h.want([]Claim{claim("a")}, nil)
	if s := h.volume("a"); s.Missing || !s.Ready {
		t.Fatalf("got %+v", s)
	}
	if _, err := os.Stat(file); err != nil {
		t.Fatal(err)
	}
	h.want(nil, nil)
	h.mu.Lock()
	h.pods = []node.Pod{{Namespace: "default", Name: "user"}}
	h.mu.Unlock()
	h.pass(61 * time.Minute)
	if s := h.volume("a"); !strings.Contains(s.Error, "in use by default/user") {
		t.Fatalf("got %+v", s)
	}
	h.mu.Lock()
	h.pods = nil
	h.mu.Unlock()
	h.m.Released()
	h.settle()
	h.volumes()
	if list := h.m.List(); len(list) > 0 {
		t.Errorf("there is still %+v", list)
	}
}

// Where nothing at all is wanted it may be that nobody can read what is.
func TestDoubt(t *testing.T) {
	h := newHouse(t, csitest.Options{})
	h.want([]Claim{claim("a")}, nil)
	h.m.Doubt(true)
	h.want(nil, nil)
	h.pass(24 * time.Hour)
	h.volumes("v-pvc-uid-a")
	h.m.Doubt(false)
	h.pass(30 * time.Minute)
	h.volumes("v-pvc-uid-a")
	h.pass(31 * time.Minute)
	h.volumes()
}

// TestClock wants a clock that is set, or stands still, to delete nothing.
func TestClock(t *testing.T) {
	h := newHouse(t, csitest.Options{})
	h.want([]Claim{claim("a")}, nil)
	h.want(nil, nil)
	for _, jump := range []time.Duration{24 * time.Hour, -48 * time.Hour, 24 * time.Hour} {
		h.clock.Add(int64(jump))
		h.settle()
		h.volumes("v-pvc-uid-a")
	}
}

func TestRetain(t *testing.T) {
	h := newHouse(t, csitest.Options{})
	c := claim("a")
	c.Class.Retain = true
	h.want([]Claim{c, claim("b")}, nil)
	h.want(nil, nil)
	if err := h.m.Keep(Volume, Ref{"default", "b"}); err != nil {
		t.Fatal(err)
	}
	h.pass(2 * time.Hour)
	h.volumes("v-pvc-uid-a", "v-pvc-uid-b")
	for _, name := range []string{"a", "b"} {
		if err := h.m.Delete(Volume, Ref{"default", name}); err != nil {
			t.Fatal(err)
		}
	}
	h.settle()
	h.volumes()
	if err := h.m.Delete(Volume, Ref{"default", "a"}); err == nil {
		t.Error("what is not there was deleted")
	}
}

func TestWaits(t *testing.T) {
	h := newHouse(t, csitest.Options{})
	c := claim("a")
	c.Waits = true
	h.want([]Claim{c}, nil)
	h.volumes()
	h.want([]Claim{claim("a")}, nil)
	h.volumes("v-pvc-uid-a")
	h.want([]Claim{c}, nil)
	h.volumes("v-pvc-uid-a")
}

// TestUncertain wants a call whose answer is lost to be made once more with the same arguments, even when nobody wants
// it any more.
func TestUncertain(t *testing.T) {
	for _, when := range []csitest.When{csitest.Before, csitest.Within, csitest.After} {
		t.Run(string(when), func(t *testing.T) {
			h := newHouse(t, csitest.Options{Respawn: true})
			h.driver.Faults.Inject(csitest.Fault{RPC: "CreateVolume", When: when, Code: codes.DeadlineExceeded})
			h.m.Want([]Claim{claim("a")}, nil, nil)
			h.await(func() bool { s, _ := h.m.Get(Volume, Ref{"default", "a"}); return s.Error != "" })
			changed := claim("a")
			changed.Class.Parameters = map[string]string{"other": "arguments"}
			h.want([]Claim{changed}, nil)
			if s := h.volume("a"); !s.Ready {
				t.Fatalf("got %+v", s)
			}
			h.driver.Faults.Inject(csitest.Fault{RPC: "CreateVolume", When: when, Code: codes.Unavailable})
			h.m.Want([]Claim{claim("a"), claim("b")}, nil, nil)
			h.await(func() bool { s, _ := h.m.Get(Volume, Ref{"default", "b"}); return s.Error != "" })
			h.m.Want(nil, nil, nil)
			h.pass(61 * time.Minute)
			h.volumes()
		})
	}
}

// await returns when ok, which is asked after each change.
func (h *house) await(ok func() bool) {
	h.t.Helper()
	deadline := time.After(time.Minute)
	for !ok() {
		select {
		case <-h.changed:
		case <-deadline:
			h.t.Fatalf("it does not come: %+v", h.m.List())
		}
	}
}

func TestFinal(t *testing.T) {
	h := newHouse(t, csitest.Options{Capacity: 10 << 20})
	c := claim("a")
	c.Bytes = 20 << 20
	h.want([]Claim{c}, nil)
	if s := h.volume("a"); s.Ready || !strings.Contains(s.Error, "no room") {
		t.Fatalf("got %+v", s)
	}
	h.want([]Claim{claim("a")}, nil) // nothing was made, so all may change
	if s := h.volume("a"); !s.Ready {
		t.Fatalf("got %+v", s)
	}
	h.want([]Claim{claim("a"), c2("b", 20<<20)}, nil)
	h.want([]Claim{claim("a")}, nil)
	if list := h.m.List(); len(list) != 1 { // what never was is not missed
		t.Errorf("got %+v", list)
	}
}

func c2(name string, bytes int64) Claim {
	c := claim(name)
	c.Bytes = bytes
	return c
}

func TestExpand(t *testing.T) {
	h := newHouse(t, csitest.Options{})
	h.want([]Claim{claim("a")}, nil)
	h.want([]Claim{c2("a", 2<<20)}, nil)
	if s := h.volume("a"); !strings.Contains(s.Error, "allowVolumeExpansion") {
		t.Fatalf("got %+v", s)
	}
	big := c2("a", 2<<20)
	big.Class.Expandable = true
	h.driver.Faults.Inject(csitest.Fault{RPC: "ControllerExpandVolume", When: csitest.After, Code: codes.Aborted})
	h.m.Want([]Claim{big}, nil, nil)
	h.await(func() bool { return strings.Contains(h.volume("a").Error, "injected") })
	h.stop() // whose expansion was asked for is not forgotten
	h.open()
	h.want([]Claim{big}, nil)
	if s := h.volume("a"); s.Bytes != 2<<20 || s.Error != "" {
		t.Fatalf("got %+v", s)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	want := node.Expansion{Driver: "csitest.berth.node", Handle: "v-pvc-uid-a", Name: "pvc-uid-a", Bytes: 2 << 20}
	if len(h.expanded) != 1 || h.expanded[0].Bytes != want.Bytes || h.expanded[0].Handle != want.Handle {
		t.Errorf("the node has expanded %+v", h.expanded)
	}
}

func TestSnapshots(t *testing.T) {
	h := newHouse(t, csitest.Options{SnapshotCalls: 1, Topology: map[string]string{"zone": "here"}})
	h.want([]Claim{claim("a")}, nil)
	file := filepath.Join(h.driver.Data("v-pvc-uid-a"), "precious")
	if err := os.WriteFile(file, []byte("first"), 0o600); err != nil {
		t.Fatal(err)
	}
	snap := Claim{Ref: Ref{"default", "s"}, UID: "uid-s", Class: Class{Name: "snap", Driver: "csitest.berth.node"}, Source: Source{Claim: "a"}}
	h.want([]Claim{claim("a")}, []Claim{snap})
	h.pass(6 * time.Second)
	s, ok := h.m.Get(Snapshot, Ref{"default", "s"})
	if !ok || !s.Ready || s.Handle != "s-snapshot-uid-s" || s.Created.IsZero() {
		t.Fatalf("got %+v", s)
	}
	if err := os.WriteFile(file, []byte("second"), 0o600); err != nil {
		t.Fatal(err)
	}
	restored, cloned := claim("r"), claim("c")
	restored.Source.Snapshot, cloned.Source.Claim = "s", "a"
	h.want([]Claim{claim("a"), restored, cloned}, []Claim{snap})
	for name, want := range map[string]string{"v-pvc-uid-r": "first", "v-pvc-uid-c": "second"} {
		data, err := os.ReadFile(filepath.Join(h.driver.Data(name), "precious"))
		if err != nil || string(data) != want {
			t.Errorf("%s has %q, %v", name, data, err)
		}
	}
	lost := claim("l")
	lost.Source.Snapshot = "nobody"
	h.want([]Claim{claim("a"), lost}, nil)
	if s := h.volume("l"); !strings.Contains(s.Error, "snapshot default/nobody: there is none") {
		t.Errorf("got %+v", s)
	}
	h.pass(61 * time.Minute)
	h.volumes("v-pvc-uid-a")
	if all := h.driver.State().Snapshots; len(all) > 0 {
		t.Errorf("there are still %v", all)
	}
}

func TestSecrets(t *testing.T) {
	key := map[string]string{"key": "hush-hush"}
	h := newHouse(t, csitest.Options{Secrets: map[string]map[string]string{"CreateVolume": key, "DeleteVolume": key, "ControllerExpandVolume": nil}})
	c := claim("a")
	c.Annotations = map[string]string{"team/key": "blue"}
	c.Class.Parameters = map[string]string{
		"own": "x", "csi.storage.k8s.io/fstype": "xfs",
		"csi.storage.k8s.io/provisioner-secret-name":      "${pvc.name}-${pvc.annotations['team/key']}",
		"csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.namespace}",
		"csi.storage.k8s.io/node-stage-secret-name":       "${pv.name}",
		"csi.storage.k8s.io/node-stage-secret-namespace":  "fixed",
	}
	h.want([]Claim{c}, nil)
	if s := h.volume("a"); !strings.Contains(s.Error, "secret default/a-blue") {
		t.Fatalf("got %+v", s)
	}
	h.secrets["default/a-blue"] = key
	h.settle()
	s := h.volume("a")
	if !s.Ready || s.FSType != "xfs" || s.Secrets.NodeStage != (Ref{"fixed", "pvc-uid-a"}) {
		t.Fatalf("got %+v", s)
	}
	if p := h.driver.State().Volumes["v-pvc-uid-a"].Parameters; !maps.Equal(p, map[string]string{"own": "x"}) {
		t.Errorf("the driver has the parameters %v", p)
	}
	files, _ := filepath.Glob(filepath.Join(h.dir, "*"))
	for _, f := range files {
		if data, _ := os.ReadFile(f); strings.Contains(string(data), "hush-hush") {
			t.Errorf("%s has a secret", f)
		}
	}
	h.want(nil, nil)
	h.pass(61 * time.Minute)
	h.volumes()
	for name, bad := range map[string]map[string]string{
		"is not known":     {"csi.storage.k8s.io/other": "x"},
		"both are needed":  {"csi.storage.k8s.io/provisioner-secret-name": "x"},
		"${x} is not know": {"csi.storage.k8s.io/provisioner-secret-name": "${x}", "csi.storage.k8s.io/provisioner-secret-namespace": "x"},
	} {
		c := claim("b")
		c.Class.Parameters = bad
		if _, _, _, err := split(Volume, &c); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

func TestDamaged(t *testing.T) {
	h := newHouse(t, csitest.Options{})
	h.want([]Claim{claim("a")}, nil)
	h.stop()
	for name, text := range map[string]string{
		"pvc-torn.json": `{"version":1,"kin`, "pvc-empty.json": "", "pvc-later.json": `{"version":9}`,
		"pvc-other.json": `{"version":1,"kind":"volume","claim":{"uid":"x","class":{"driver":"d"}}}`,
		"pvc-x.json.new": "half",
	} {
		if err := os.WriteFile(filepath.Join(h.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h.open()
	if p := h.m.Problems(); len(p) != 4 {
		t.Errorf("got %q", p)
	}
	h.want([]Claim{claim("a")}, nil)
	if s := h.volume("a"); !s.Ready {
		t.Errorf("got %+v", s)
	}
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"version":1,"kind":"volume","claim":{"uid":"a","class":{"driver":"d"}},"handle":"h","missing":true,"missingFor":3}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decode(data, "pvc-a")
		if err == nil && (r.Kind != Volume || r.Claim.UID != "a" || r.For < 0) {
			t.Errorf("took %+v", r)
		}
	})
}

// TestRandom wants the driver to have just the volumes and group snapshots that are wanted, with the attributes that
// are, after any order of claims that come, change and go, faults, and agents that end.
func TestRandom(t *testing.T) {
	n, seed := 20, uint64(time.Now().UnixNano())
	if s, err := strconv.Atoi(os.Getenv("BERTH_CSI_SCHEDULES")); err == nil {
		n = s
	}
	if s, err := strconv.ParseUint(os.Getenv("BERTH_CSI_SEED"), 10, 64); err == nil {
		seed = s
	}
	var mu sync.Mutex
	r, faulty := rand.New(rand.NewPCG(seed, 0)), true
	pick := func(n int) int { mu.Lock(); defer mu.Unlock(); return r.IntN(n) }
	all := []codes.Code{codes.Internal, codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.Canceled}
	final := []codes.Code{codes.Internal, codes.ResourceExhausted, codes.InvalidArgument, codes.FailedPrecondition}
	h := newHouse(t, csitest.Options{Respawn: true, Decide: func(rpc, _ string) *csitest.Fault {
		mu.Lock()
		defer mu.Unlock()
		if !faulty || !strings.HasSuffix(rpc, "Volume") && !strings.HasSuffix(rpc, "GroupSnapshot") || r.IntN(3) > 0 {
			return nil
		}
		f := &csitest.Fault{When: csitest.Before, Code: final[r.IntN(len(final))]}
		if r.IntN(2) == 0 { // an error after the effect must not be final
			f.When, f.Code = []csitest.When{csitest.Within, csitest.After}[r.IntN(2)], all[1+r.IntN(len(all)-1)]
		}
		f.Exit, f.Drop = r.IntN(12) == 0, r.IntN(12) == 0
		return f
	}})
	h.stop()
	h.grace, h.ticks = 0, true
	h.open()
	for s := range n {
		mu.Lock()
		faulty = true
		mu.Unlock()
		var want, groups []Claim
		for range 4 {
			want, groups = randomWant(pick)
			h.m.Want(want, nil, groups)
			if pick(2) == 0 {
				h.settleSome(pick(4))
			}
			if pick(5) == 0 {
				h.stop()
				h.open()
				h.m.Want(want, nil, groups)
			}
		}
		mu.Lock()
		faulty = false
		mu.Unlock()
		var names []string
		for _, c := range want {
			names = append(names, "v-pvc-"+c.UID)
		}
		slices.Sort(names)
		h.until(func() bool { return slices.Equal(slices.Sorted(maps.Keys(h.driver.State().Volumes)), names) }, seed)
		h.until(func() bool { return len(h.m.List()) == len(want)+len(groups) && h.asWanted(want, groups) }, seed)
		if t.Failed() {
			t.Fatalf("schedule %d of BERTH_CSI_SEED=%d", s, seed)
		}
	}
	t.Logf("%d calls", len(h.driver.Calls()))
	if v := h.driver.Violations(); len(v) > 0 {
		t.Errorf("BERTH_CSI_SEED=%d: %q", seed, v)
	}
}

// randomWant is any claims with any attributes, and a group snapshot of them all.
func randomWant(pick func(int) int) (want, groups []Claim) {
	var names []string
	for c := range 4 {
		if pick(2) != 0 {
			continue
		}
		one := claim(strconv.Itoa(c))
		if class := strconv.Itoa(pick(3)); class != "0" {
			one.Attributes = Attributes{class, "csitest.berth.node", map[string]string{"only-" + class: class, "iops": class}}
		}
		want, names = append(want, one), append(names, one.Name)
	}
	if len(names) > 0 && pick(2) == 0 {
		groups = append(groups, groupOf("g", names...))
	}
	return want, groups
}

// asWanted says whether the driver has the group snapshots that are wanted, and the volumes what their attributes say.
func (h *house) asWanted(want, groups []Claim) bool {
	s := h.driver.State()
	if len(s.Groups) != len(groups) {
		return false
	}
	for _, g := range groups {
		if g, _ := h.m.Get(Group, g.Ref); !g.Ready || s.Groups[g.Handle] == nil || len(s.Groups[g.Handle].Snapshots) != len(g.Members) {
			return false
		}
	}
	for _, c := range want {
		for k, v := range c.Attributes.Parameters {
			if s.Volumes["v-pvc-"+c.UID].Mutable[k] != v {
				return false
			}
		}
	}
	return true
}

// settleSome lets some changes happen.
func (h *house) settleSome(n int) {
	for range n {
		select {
		case <-h.changed:
		case <-time.After(5 * time.Millisecond): // there need be none
		}
	}
}

// until has everything be tried until it is as ok wants.
func (h *house) until(ok func() bool, seed uint64) {
	h.t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); h.settle() {
		if time.Now().After(deadline) {
			h.t.Fatalf("it does not come, BERTH_CSI_SEED=%d: %+v; the driver has %v", seed, h.m.List(), slices.Sorted(maps.Keys(h.driver.State().Volumes)))
		}
	}
}

// TestTooSmall wants it to be told of what is not as it was asked for.
func TestTooSmall(t *testing.T) {
	d := &csi.Driver{Name: "d", Topology: map[string]string{"zone": "here"}}
	asked := &spec.CreateVolumeRequest{CapacityRange: &spec.CapacityRange{RequiredBytes: 10, LimitBytes: 20}}
	for name, one := range map[string]struct {
		v    *spec.Volume
		want string
	}{
		"good":        {&spec.Volume{VolumeId: "a", CapacityBytes: 10, AccessibleTopology: []*spec.Topology{{Segments: d.Topology}}}, ""},
		"small":       {&spec.Volume{VolumeId: "a", CapacityBytes: 9}, "it has 9 bytes"},
		"large":       {&spec.Volume{VolumeId: "a", CapacityBytes: 21}, "at most 20"},
		"elsewhere":   {&spec.Volume{VolumeId: "a", AccessibleTopology: []*spec.Topology{{Segments: map[string]string{"zone": "there"}}}}, "cannot be reached"},
		"without ID":  {&spec.Volume{}, "an ID of 0 bytes"},
		"below zero":  {&spec.Volume{VolumeId: "a", CapacityBytes: -1}, "it has -1 bytes"},
		"silent":      {&spec.Volume{VolumeId: "a"}, ""},
		"too long ID": {&spec.Volume{VolumeId: strings.Repeat("a", maxHandle+1)}, "an ID of 4097 bytes"},
	} {
		wrong, err := checkVolume(d, asked, one.v)
		got := ""
		if err = errors.Join(wrong, err); err != nil {
			got = err.Error()
		}
		if one.want == "" && got != "" || !strings.Contains(got, one.want) {
			t.Errorf("%s: %q", name, got)
		}
	}
}
