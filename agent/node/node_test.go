package node

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

func isReady(s *server) bool {
	n := get[*corev1.Node](s, "nodes")
	return n != nil && statusOf(n, corev1.NodeReady) == corev1.ConditionTrue
}

func TestRegisters(t *testing.T) {
	s, m := newServer(), &machine{facts: testFacts()}
	n, h := run(t, s, m, nil)
	s.until(t, "the node is ready", func() bool { return isReady(s) })
	s.until(t, "there is a lease", func() bool { return get[*coordinationv1.Lease](s, "leases") != nil })
	l, c := get[*coordinationv1.Lease](s, "leases"), get[*storagev1.CSINode](s, "csinodes")
	owner := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n", UID: n.UID()}}
	if !slices.Equal(l.OwnerReferences, owner) || !slices.Equal(c.OwnerReferences, owner) {
		t.Errorf("owners: %v, %v", l.OwnerReferences, c.OwnerReferences)
	}
	if l.Namespace != "kube-node-lease" || *l.Spec.HolderIdentity != "n" || *l.Spec.LeaseDurationSeconds != 40 || l.Spec.RenewTime.IsZero() {
		t.Errorf("lease: %+v", l)
	}
	if c.Spec.Drivers == nil || n.Current().Name != "n" {
		t.Errorf("CSINode %+v", c)
	}
	if got := s.count("patch nodes") + s.count("patch-with-metadata nodes") + s.count("create nodes"); got != 2 {
		t.Errorf("the Node was written %d times to be ready, not twice: once without the CSINode, once with it", got)
	}
	for _, want := range []string{
		"Normal Starting Starting kubelet.", "Normal NodeAllocatableEnforced Updated Node Allocatable limit across pods",
		"Normal NodeHasSufficientMemory Node n status is now: NodeHasSufficientMemory",
		"Normal NodeHasNoDiskPressure Node n status is now: NodeHasNoDiskPressure",
		"Normal NodeHasSufficientPID Node n status is now: NodeHasSufficientPID", "Normal NodeReady Node n status is now: NodeReady",
	} {
		if !h.has(want) {
			t.Errorf("no event %q in %q", want, h.list)
		}
	}
}

// TestWritesWhatChanges has every kind of fact change.
func TestWritesWhatChanges(t *testing.T) {
	s, m := newServer(), &machine{facts: testFacts()}
	var inUse atomic.Int32
	n, h := run(t, s, m, func(c *Config) {
		c.Written = func(is *corev1.Node) { inUse.Store(int32(len(is.Status.VolumesInUse))) }
	})
	s.until(t, "the node is ready", func() bool { return isReady(s) })
	s.change(func(n *corev1.Node) {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: "Theirs", Status: corev1.ConditionTrue})
		n.Labels["theirs"] = "1"
		n.Spec.Unschedulable = true
	})
	s.until(t, "it is heard of", func() bool { return n.Current().Labels["theirs"] != "" })
	s.until(t, "it is told", func() bool { return h.has("Normal NodeNotSchedulable Node n status is now: NodeNotSchedulable") })
	for what, one := range map[string]struct {
		change func(*Facts)
		is     func(*corev1.Node) bool
	}{
		"addresses": {
			func(f *Facts) { f.Addresses = []string{"192.0.2.2", "2001:db8::2"} },
			func(n *corev1.Node) bool {
				return len(n.Status.Addresses) == 3 && n.Status.Addresses[0].Address == "192.0.2.2" && n.Status.Addresses[1].Address == "2001:db8::2"
			},
		},
		"images": {
			func(f *Facts) { f.Images = []Image{{[]string{"i"}, 3}} },
			func(n *corev1.Node) bool { return len(n.Status.Images) == 1 },
		},
		"devices": {
			func(f *Facts) { f.Resources.Well = list("example.com/gpu", "1") },
			func(n *corev1.Node) bool { q := n.Status.Allocatable["example.com/gpu"]; return q.Value() == 1 },
		},
		"volumes": {
			func(f *Facts) { f.InUse = []corev1.UniqueVolumeName{"kubernetes.io/csi/d^v"} },
			func(n *corev1.Node) bool { return len(n.Status.VolumesInUse) == 1 && inUse.Load() == 1 },
		},
		"pressure": {
			func(f *Facts) { f.Pressure = []Pressure{{corev1.NodeDiskPressure, true}} },
			func(n *corev1.Node) bool { return statusOf(n, corev1.NodeDiskPressure) == corev1.ConditionTrue },
		},
		"runtime": {
			func(f *Facts) { f.Runtime.Status = ready(false) },
			func(n *corev1.Node) bool {
				return statusOf(n, corev1.NodeReady) == corev1.ConditionFalse && h.has("Normal NodeNotReady Node n status is now: NodeNotReady")
			},
		},
	} {
		m.set(func(m *machine) { one.change(&m.facts) })
		n.ImagesChanged()
		s.until(t, what, func() bool { return one.is(get[*corev1.Node](s, "nodes")) })
	}
	is := get[*corev1.Node](s, "nodes")
	if is.Labels["theirs"] != "1" || statusOf(is, "Theirs") != corev1.ConditionTrue || !is.Spec.Unschedulable {
		t.Errorf("what is others' has changed: %+v", is)
	}
	// Nothing changes any more.
	writes := s.count("patch nodes")
	for range 3 {
		n.ImagesChanged()
		lists := s.count("list nodes")
		n.store.again()
		s.until(t, "the Node is read again", func() bool { return s.count("list nodes") > lists })
	}
	if got := s.count("patch nodes"); got != writes {
		t.Errorf("nothing has changed, and there were %d writes", got-writes)
	}
}

func TestDeletedNode(t *testing.T) {
	s, m := newServer(), &machine{facts: testFacts()}
	n, _ := run(t, s, m, nil)
	s.until(t, "the node is ready", func() bool { return isReady(s) })
	var gone atomic.Int32
	end := n.Subscribe(func(now *corev1.Node) {
		if now == nil {
			gone.Add(1)
		}
	})
	defer end()
	for range 3 {
		before := n.UID()
		s.change(nil)
		s.until(t, "the node is there again", func() bool {
			l, c := get[*coordinationv1.Lease](s, "leases"), get[*storagev1.CSINode](s, "csinodes")
			uid := n.UID()
			return isReady(s) && uid != "" && uid != before && l.OwnerReferences[0].UID == uid && c.OwnerReferences[0].UID == uid
		})
	}
	if gone.Load() != 3 {
		t.Errorf("who listens has heard of %d ends", gone.Load())
	}
}

// TestSilentRuntime has a runtime not answer for a while: at first nobody makes anything of it, and one that has never
// answered is not ready.
func TestSilentRuntime(t *testing.T) {
	s, m := newServer(), &machine{facts: testFacts(), err: errors.New("it is starting")}
	n, _ := run(t, s, m, nil)
	s.until(t, "the node is registered", func() bool { return get[*corev1.Node](s, "nodes") != nil })
	is := get[*corev1.Node](s, "nodes")
	if c := is.Status.Conditions[3]; c.Status != corev1.ConditionFalse || !strings.Contains(c.Message, messageUnknown) {
		t.Errorf("%+v", c)
	}
	m.set(func(m *machine) { m.err = nil })
	s.until(t, "the node is ready with nobody telling", func() bool { return isReady(s) })
	m.set(func(m *machine) { m.err, m.facts.Addresses = errors.New("it is restarted"), []string{"192.0.2.50"} })
	n.Changed()
	s.until(t, "a change is written", func() bool { return get[*corev1.Node](s, "nodes").Status.Addresses[0].Address == "192.0.2.50" })
	if !isReady(s) {
		t.Error("a runtime that is restarted has the node be not ready at once")
	}
	g := gatherer{sources: m.sources(), answered: time.Now().Add(-downFrom)}
	if f, err := g.facts(t.Context(), false); err == nil || f.Runtime.Down != messageDown {
		t.Errorf("after %s: %q, %v", downFrom, f.Runtime.Down, err)
	}
}

// TestDeletedUnheard has the Node be deleted while no watch tells of it.
func TestDeletedUnheard(t *testing.T) {
	s, m := newServer(), &machine{facts: testFacts()}
	n, _ := run(t, s, m, nil)
	s.until(t, "the node is ready", func() bool { return isReady(s) })
	s.mu.Lock()
	delete(s.objects, "nodes")
	s.mu.Unlock()
	m.set(func(m *machine) { m.facts.Addresses = []string{"192.0.2.9"} })
	n.Changed()
	s.until(t, "the node is there again", func() bool { return isReady(s) })
}

func TestNotRegistering(t *testing.T) {
	s, m := newServer(), &machine{facts: testFacts()}
	run(t, s, m, func(c *Config) { c.Register = false })
	s.until(t, "there is a watch", func() bool { return s.count("watch nodes") > 0 })
	made := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	if err := s.Create(t.Context(), nodes, made, &corev1.Node{}); err != nil {
		t.Fatal(err)
	}
	s.until(t, "the node is ready", func() bool { return isReady(s) })
	if n := s.count("create nodes"); n != 1 {
		t.Errorf("the Node was made %d times", n)
	}
	if is := get[*corev1.Node](s, "nodes"); is.Labels["kubernetes.io/hostname"] != "n" || is.Labels["disk"] != "" {
		t.Errorf("labels %v", is.Labels)
	}
}

// TestTakesOver has the Node be there from before a reboot.
func TestTakesOver(t *testing.T) {
	s, m := newServer(), &machine{facts: testFacts()}
	f := testFacts()
	old := Build(&f, nil, true, testNow)
	old.Status.NodeInfo.BootID, old.Status.NodeInfo.MachineID = "earlier", "another"
	old.Labels["kubernetes.io/arch"] = "other"
	s.put("nodes", old)
	_, h := run(t, s, m, nil)
	s.until(t, "the node is this one", func() bool {
		is := get[*corev1.Node](s, "nodes")
		return is.Status.NodeInfo.BootID == "b" && is.Labels["kubernetes.io/arch"] != "other"
	})
	s.until(t, "the reboot is told", func() bool { return h.has("Warning Rebooted Node n has been rebooted, boot id: b") })
}

// TestFailures has each call fail in each way for a while.
func TestFailures(t *testing.T) {
	gr := schema.GroupResource{Resource: "nodes"}
	kinds := map[string]func(context.Context) error{
		"unreachable": func(context.Context) error { return errors.New("connection refused") },
		"forbidden":   func(context.Context) error { return apierrors.NewForbidden(gr, "n", errors.New("no")) },
		"conflict":    func(context.Context) error { return apierrors.NewConflict(gr, "n", errors.New("changed")) },
		"not found":   func(context.Context) error { return apierrors.NewNotFound(gr, "n") },
		"busy":        func(context.Context) error { return apierrors.NewTooManyRequests("wait", 1) },
		"internal":    func(context.Context) error { return apierrors.NewInternalError(errors.New("broken")) },
		"invalid":     func(context.Context) error { return apierrors.NewInvalid(schema.GroupKind{}, "n", nil) },
		"expired":     func(context.Context) error { return apierrors.NewResourceExpired("too old") },
		"hanging": func(ctx context.Context) error {
			select {
			case <-ctx.Done():
			case <-time.After(time.Second): // it answers late in the end, and badly
			}
			return apierrors.NewTimeoutError("late", 0)
		},
	}
	for what, err := range kinds {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s, m := newServer(), &machine{facts: testFacts()}
			seen := map[string]int{}
			s.fail = func(ctx context.Context, call string) error {
				s.mu.Lock()
				seen[call]++
				fails := seen[call] <= 2
				s.mu.Unlock()
				if fails {
					return err(ctx)
				}
				return nil
			}
			n, _ := run(t, s, m, nil)
			s.until(t, "the node is ready", func() bool { return isReady(s) })
			s.until(t, "there is a lease", func() bool { return get[*coordinationv1.Lease](s, "leases") != nil })
			s.mu.Lock()
			clear(seen)
			s.mu.Unlock()
			m.set(func(m *machine) { m.facts.Addresses = []string{"192.0.2.77"} })
			n.Changed()
			s.until(t, "the change is written", func() bool {
				is := get[*corev1.Node](s, "nodes")
				return is != nil && is.Status.Addresses[0].Address == "192.0.2.77"
			})
		})
	}
}

// TestRetryAfter holds the node to what a server asks for.
func TestRetryAfter(t *testing.T) {
	p := pause{least: time.Millisecond, most: 5 * time.Millisecond}
	for range 20 {
		if wait := p.after(apierrors.NewTooManyRequests("wait", 7)); wait < 7*time.Second || wait > 8*time.Second {
			t.Fatalf("%s", wait)
		}
		if wait := p.after(errors.New("other")); wait > 5*time.Millisecond {
			t.Fatalf("%s", wait)
		}
	}
	if wait := p.after(apierrors.NewTooManyRequests("wait", 1<<30)); wait > 2*maxAsked {
		t.Errorf("a server has a node keep silent for %s", wait)
	}
}

// TestLeaseWaitsForNobody has writes of the Node hang for ever.
func TestLeaseWaitsForNobody(t *testing.T) {
	s, m := newServer(), &machine{facts: testFacts()}
	run(t, s, m, func(c *Config) { c.LeaseDuration = 4 * time.Second })
	s.until(t, "the node is ready", func() bool { return isReady(s) })
	s.setFail(func(ctx context.Context, call string) error {
		if strings.HasSuffix(call, " nodes") {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	s.endWatches()
	before := s.count("update leases")
	s.until(t, "the lease is renewed", func() bool { return s.count("update leases") >= before+3 })
}

func TestLeaseOfOthers(t *testing.T) {
	s, m := newServer(), &machine{facts: testFacts()}
	other := "other"
	s.put("leases", &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "n", OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Node", Name: "n", UID: "gone"}, {APIVersion: "v1", Kind: "Other", Name: "o", UID: "o"},
		}},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &other},
	})
	n, _ := run(t, s, m, func(c *Config) { c.LeaseDuration = 4 * time.Second })
	is := func() bool {
		l := get[*coordinationv1.Lease](s, "leases")
		return l != nil && *l.Spec.HolderIdentity == "n" && len(l.OwnerReferences) == 2 && l.OwnerReferences[1].UID == n.UID() && n.UID() != ""
	}
	s.until(t, "the lease is this node's", is)
	// Somebody changes it, and somebody deletes it.
	l := get[*coordinationv1.Lease](s, "leases")
	l.Spec.HolderIdentity = &other
	s.put("leases", l)
	s.until(t, "the lease is this node's again", is)
	s.mu.Lock()
	delete(s.objects, "leases")
	s.mu.Unlock()
	s.until(t, "the lease is made again", func() bool { return get[*coordinationv1.Lease](s, "leases") != nil })
}

// TestAnotherAnswers has a server answer with the objects of another node: what is not this one's is not written over.
func TestAnotherAnswers(t *testing.T) {
	s, m := newServer(), &machine{facts: testFacts()}
	s.put("leases", &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "another"}})
	s.put("csinodes", &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "another"}})
	run(t, s, m, func(c *Config) { c.LeaseDuration = 4 * time.Second })
	s.until(t, "both are asked for again", func() bool { return s.count("get leases") > 1 && s.count("get csinodes") > 1 })
	if n := s.count("update leases") + s.count("update csinodes"); n > 0 {
		t.Errorf("%d times another's was written", n)
	}
}

// TestWentBack has the server be restored from a backup of before the node was registered, and of after it.
func TestWentBack(t *testing.T) {
	s, m := newServer(), &machine{facts: testFacts()}
	var told atomic.Int32
	n, _ := run(t, s, m, func(c *Config) {
		c.LeaseDuration = 4 * time.Second
		c.WentBack = func() { told.Add(1) }
	})
	s.until(t, "the node is ready", func() bool { return isReady(s) })
	s.until(t, "there is a lease", func() bool { return get[*coordinationv1.Lease](s, "leases") != nil })
	uid := n.UID()
	s.mu.Lock()
	s.version = 3
	old := s.objects["nodes"].(*corev1.Node)
	old.Status.Addresses = nil
	for _, o := range s.objects {
		s.stamp(o)
	}
	s.mu.Unlock()
	s.until(t, "the node is as it was", func() bool {
		is := get[*corev1.Node](s, "nodes")
		return len(is.Status.Addresses) == 3 && told.Load() == 1
	})
	s.mu.Lock()
	s.version = 1
	clear(s.objects)
	s.mu.Unlock()
	s.endWatches()
	s.until(t, "the node is registered again", func() bool { return isReady(s) && n.UID() != uid })
	s.until(t, "there is a lease", func() bool { return get[*coordinationv1.Lease](s, "leases") != nil })
	s.until(t, "the second restore is told", func() bool { return told.Load() > 1 })
	if told.Load() != 2 {
		t.Errorf("of two restores %d were told", told.Load())
	}
}

// TestOtherAnswers has the server answer with objects that were not asked for.
func TestOtherAnswers(t *testing.T) {
	s, m := newServer(), &machine{facts: testFacts()}
	var wrong atomic.Bool
	wrong.Store(true)
	n, _ := run(t, s, m, func(c *Config) {
		c.Client = lying{s, &wrong}
		c.LeaseDuration = 4 * time.Second
	})
	s.until(t, "the server answers", func() bool { return s.count("patch nodes") > 2 && s.count("update leases") > 2 })
	if n.Current() != nil && n.Current().Name != "n" {
		t.Errorf("the node is %q", n.Current().Name)
	}
	wrong.Store(false)
	s.until(t, "the node is ready", func() bool { return isReady(s) && n.UID() != "" })
	wrong.Store(true)
	m.set(func(m *machine) { m.facts.Addresses = []string{"192.0.2.99"} })
	n.Changed()
	renewed := s.count("update leases")
	s.until(t, "the lease is renewed", func() bool { return s.count("update leases") > renewed+2 })
	if n.Current().Name != "n" {
		t.Errorf("the node is %q", n.Current().Name)
	}
}

// lying is a server whose answers to writes are of other objects, and empty ones.
type lying struct {
	*server
	wrong *atomic.Bool
}

func (l lying) Create(ctx context.Context, of schema.GroupVersionResource, o Object, into runtime.Object) error {
	return l.twist(l.server.Create(ctx, of, o, into), into)
}

func (l lying) Update(ctx context.Context, of schema.GroupVersionResource, o Object, into runtime.Object) error {
	return l.twist(l.server.Update(ctx, of, o, into), into)
}

func (l lying) Patch(
	ctx context.Context, of schema.GroupVersionResource, key types.NamespacedName, kind types.PatchType, patch []byte,
	into runtime.Object, sub ...string,
) error {
	return l.twist(l.server.Patch(ctx, of, key, kind, patch, into, sub...), into)
}

func (l lying) twist(err error, o runtime.Object) error {
	if l.wrong.Load() {
		o.(Object).SetName("other")
		o.(Object).SetUID("")
	}
	return err
}

func TestCSINode(t *testing.T) {
	s, m := newServer(), &machine{facts: testFacts()}
	n, _ := run(t, s, m, func(c *Config) { c.Migrated = []string{"kubernetes.io/b", "kubernetes.io/a"} })
	s.until(t, "the node is ready", func() bool { return isReady(s) })
	set := func(d ...Driver) {
		m.set(func(m *machine) { m.facts.Drivers = d })
		n.DriversChanged()
	}
	is := func() []storagev1.CSINodeDriver { return get[*storagev1.CSINode](s, "csinodes").Spec.Drivers }
	set(
		Driver{Name: "d", NodeID: "i", Topology: map[string]string{"example.com/rack": "r"}, MaxVolumes: 5},
		Driver{Name: "e", NodeID: "j", MaxVolumes: 1 << 40},
		Driver{Name: "astray", NodeID: "k", Topology: map[string]string{"kubernetes.io/hostname": "elsewhere"}},
	)
	s.until(t, "the drivers are there", func() bool { return len(is()) == 2 })
	d, e := is()[0], is()[1]
	if e.Name == "d" {
		d, e = e, d
	}
	if d.NodeID != "i" || d.TopologyKeys[0] != "example.com/rack" || *d.Allocatable.Count != 5 || *e.Allocatable.Count != 1<<31-1 {
		t.Errorf("%+v, %+v", d, e)
	}
	c, node := get[*storagev1.CSINode](s, "csinodes"), get[*corev1.Node](s, "nodes")
	if a := c.Annotations["storage.alpha.kubernetes.io/migrated-plugins"]; a != "kubernetes.io/a,kubernetes.io/b" {
		t.Errorf("annotation %q", a)
	}
	if node.Labels["example.com/rack"] != "r" || node.Labels["kubernetes.io/hostname"] != "n" {
		t.Errorf("labels %v", node.Labels)
	}
	set(Driver{Name: "e", NodeID: "other"})
	s.until(t, "a driver is gone, and one is another", func() bool { return len(is()) == 1 && is()[0].NodeID == "other" && is()[0].Allocatable == nil })
	// Deleted with nobody telling: it is made again when it is to be changed.
	s.mu.Lock()
	delete(s.objects, "csinodes")
	s.mu.Unlock()
	set()
	s.until(t, "there is one again", func() bool { return get[*storagev1.CSINode](s, "csinodes") != nil })
}

// TestCSINodeAfterRestart keeps drivers for a while that have yet to register.
func TestCSINodeAfterRestart(t *testing.T) {
	s, m := newServer(), &machine{facts: testFacts()}
	s.put("csinodes", &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "d", NodeID: "i"}}},
	})
	n, _ := run(t, s, m, nil)
	s.until(t, "the node is ready", func() bool { return isReady(s) })
	if c := get[*storagev1.CSINode](s, "csinodes"); len(c.Spec.Drivers) != 1 || len(c.OwnerReferences) != 1 {
		t.Errorf("%+v", c)
	}
	m.set(func(m *machine) { m.facts.Drivers = []Driver{{Name: "d", NodeID: "i"}} })
	n.DriversChanged()
	s.until(t, "it is looked at", func() bool { return get[*corev1.Node](s, "nodes").Annotations[annotationNodeIDs] != "" })
	m.set(func(m *machine) { m.facts.Drivers = nil })
	n.DriversChanged()
	s.until(t, "a driver that has gone is gone", func() bool { return len(get[*storagev1.CSINode](s, "csinodes").Spec.Drivers) == 0 })
}

// TestHostileDriver has a driver say that it is where no node may say that it is.
func TestHostileDriver(t *testing.T) {
	s, m := newServer(), &machine{facts: testFacts()}
	n, _ := run(t, s, m, nil)
	s.until(t, "the node is ready", func() bool { return isReady(s) })
	s.setFail(func(_ context.Context, call string) error {
		if call == "patch-with-metadata nodes" {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "n", errors.New("no such label"))
		}
		return nil
	})
	m.set(func(m *machine) {
		m.facts.Drivers = []Driver{{Name: "d", NodeID: "i", Topology: map[string]string{"node-restriction.kubernetes.io/x": "y"}}}
		m.facts.Runtime.Status = ready(false)
	})
	n.DriversChanged()
	s.until(t, "it is known how the node is", func() bool { return !isReady(s) })
	for i := range 3 {
		m.set(func(m *machine) { m.facts.Runtime.Status = ready(i%2 == 0) })
		n.Changed()
		s.until(t, "it is known how the node is", func() bool { return isReady(s) == (i%2 == 0) })
	}
	if got := s.count("patch-with-metadata nodes"); got != 1 {
		t.Errorf("labels that are refused were sent %d times", got)
	}
	if c := get[*storagev1.CSINode](s, "csinodes"); len(c.Spec.Drivers) != 0 {
		t.Errorf("%+v", c.Spec)
	}
}

// TestUnfitDrivers has drivers say of the node what the API server has of no node: what the others say is written.
func TestUnfitDrivers(t *testing.T) {
	s, m := newServer(), &machine{facts: testFacts()}
	n, _ := run(t, s, m, nil)
	s.until(t, "the node is ready", func() bool { return isReady(s) })
	rack := map[string]string{"example.com/rack": "r"}
	set := func(d ...Driver) {
		m.set(func(m *machine) { m.facts.Drivers = d })
		n.DriversChanged()
	}
	set(
		Driver{Name: "long", NodeID: strings.Repeat("i", maxNodeID+1)},
		Driver{Name: "value", NodeID: "i", Topology: map[string]string{"example.com/zone": "no\nvalue"}},
		Driver{Name: "key", NodeID: "i", Topology: map[string]string{strings.Repeat("k", 1000): "v", "example.com/key": "v"}},
		Driver{Name: "above", NodeID: "i", Topology: map[string]string{"node-restriction.kubernetes.io/x": "y"}},
		Driver{Name: "good", NodeID: "i", Topology: rack},
	)
	is := func() []storagev1.CSINodeDriver { return get[*storagev1.CSINode](s, "csinodes").Spec.Drivers }
	s.until(t, "the one that is right is there", func() bool { return len(is()) == 1 && is()[0].Name == "good" })
	labels := get[*corev1.Node](s, "nodes").Labels
	for _, key := range []string{"example.com/zone", "example.com/key", "node-restriction.kubernetes.io/x"} {
		if _, has := labels[key]; has {
			t.Errorf("the Node has the label %s", key)
		}
	}
	if labels["example.com/rack"] != "r" {
		t.Errorf("labels are %v", labels)
	}
	// The API has no driver change: it goes, and comes again.
	set(Driver{Name: "good", NodeID: "another", Topology: rack}, Driver{Name: "second", NodeID: "i"})
	s.until(t, "it is another", func() bool {
		return len(is()) == 2 && is()[0].NodeID != "i" || len(is()) == 2 && is()[1].NodeID == "another"
	})
}
