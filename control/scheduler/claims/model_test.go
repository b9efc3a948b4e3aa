package claims

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/structured"
)

// world is an API server with claims, a watch of it that lags, and a scheduler with pods on their way. Its truth is
// that no device is ever two claims'.
type world struct {
	t        *testing.T
	r        *rand.Rand
	version  int
	uid      int
	api      map[string]*resourcev1.ResourceClaim
	events   []*resourcev1.ResourceClaim // not heard of yet, in the order of the API; with a deletion time: it is gone
	store    cache.Indexer
	tracker  *Tracker
	attempts []*attempt
	devices  int
}

// attempt is a pod that is to be bound with the devices of a claim.
type attempt struct {
	name string
	uid  types.UID
	plan *resourcev1.AllocationResult
	seen *resourcev1.ResourceClaim
}

const claimNames = 6

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, r: rand.New(rand.NewPCG(seed, 18)), api: map[string]*resourcev1.ResourceClaim{}, devices: 4}
	w.restart()
	return w
}

// restart is a scheduler that was killed, and begins with a list of what there is.
func (w *world) restart() {
	w.store = cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	w.tracker = NewTracker(resourcelisters.NewResourceClaimLister(w.store))
	w.attempts = nil
	w.relist()
}

// relist is a watch that was lost: what happened in between is not told of, only what there is now.
func (w *world) relist() {
	w.events = nil
	all := make([]any, 0, len(w.api))
	for _, c := range w.api {
		all = append(all, c)
	}
	if err := w.store.Replace(all, strconv.Itoa(w.version)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) write(c *resourcev1.ResourceClaim) *resourcev1.ResourceClaim {
	c = c.DeepCopy()
	w.version++
	c.ResourceVersion = strconv.Itoa(w.version)
	w.api[c.Name] = c
	w.events = append(w.events, c)
	return c
}

// hear has the informer know of an event, which it may be told of twice. Those of one claim come in their order, those
// of several in any.
func (w *world) hear() {
	if len(w.events) == 0 {
		return
	}
	e := w.events[w.r.IntN(len(w.events))]
	i := slices.IndexFunc(w.events, func(o *resourcev1.ResourceClaim) bool { return o.Name == e.Name })
	e = w.events[i]
	w.events = slices.Delete(w.events, i, i+1)
	for range 1 + w.r.IntN(2) {
		if e.DeletionTimestamp != nil {
			_ = w.store.Delete(e)
		} else {
			_ = w.store.Update(e)
		}
	}
}

func (w *world) taken() map[string]string {
	taken := map[string]string{}
	for _, c := range w.api {
		if a := c.Status.Allocation; a != nil {
			for _, r := range a.Devices.Results {
				if other := taken[r.Device]; other != "" {
					w.t.Fatalf("claims %s and %s have %s", other, c.Name, r.Device)
				}
				taken[r.Device] = c.Name
			}
		}
	}
	return taken
}

// schedule decides for a claim what the tracker says is free, as the scheduling loop does.
func (w *world) schedule(name string) {
	c, err := w.tracker.Get("ns", name)
	if err != nil || len(w.attempts) > 4 {
		return
	}
	a := &attempt{name: name, uid: c.UID, seen: c, plan: c.Status.Allocation}
	if a.plan == nil {
		a.plan = w.tracker.GetPendingAllocation(c.UID)
		shared := a.plan != nil
		if a.plan == nil {
			a.plan = w.free()
		}
		if a.plan == nil {
			return
		}
		o := c.DeepCopy()
		o.Status.Allocation = a.plan
		if err := w.tracker.SignalClaimPendingAllocation(c.UID, o); err != nil {
			w.t.Fatalf("decide for claim %s (shared %v): %v", name, shared, err)
		}
		w.attempts = append(w.attempts, a)
	}
}

func (w *world) free() *resourcev1.AllocationResult {
	s, err := w.tracker.GatherAllocatedState()
	if err != nil {
		w.t.Fatal(err)
	}
	// The model: nothing that the API or an attempt has may be missing, but what the API has and nobody has heard of
	// was written by this scheduler only.
	for d, c := range w.taken() {
		if !s.AllocatedDevices.Has(structured.MakeDeviceID("d", "p", d)) {
			w.t.Fatalf("device %s of claim %s is thought to be free", d, c)
		}
	}
	for _, a := range w.attempts {
		if d := a.plan.Devices.Results[0].Device; !s.AllocatedDevices.Has(structured.MakeDeviceID("d", "p", d)) {
			w.t.Fatalf("device %s, which is decided for claim %s, is thought to be free", d, a.name)
		}
	}
	for i := range w.devices {
		d := fmt.Sprintf("d%d", i)
		if !s.AllocatedDevices.Has(structured.MakeDeviceID("d", "p", d)) {
			return &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
				{Request: "r", Driver: "d", Pool: "p", Device: d},
			}}}
		}
	}
	return nil
}

// bind ends an attempt: its allocation is written, or it is given up.
func (w *world) bind(i int) {
	a := w.attempts[i]
	w.attempts = slices.Delete(w.attempts, i, i+1)
	defer w.tracker.MaybeRemoveClaimPendingAllocation(a.uid, false)
	if w.r.IntN(4) == 0 {
		return
	}
	c := w.api[a.name]
	if c == nil || c.UID != a.uid {
		return
	}
	if c.Status.Allocation != nil && !Same(c.Status.Allocation, a.plan) {
		w.t.Fatalf("claim %s has %v, and %v was decided", a.name, c.Status.Allocation, a.plan)
	}
	if c.Status.Allocation == nil {
		o := c.DeepCopy()
		o.Status.Allocation = a.plan
		c = w.write(o)
		w.taken()
	}
	_ = w.tracker.AssumeClaimAfterAPICall(c)
}

func (w *world) step() {
	name := fmt.Sprintf("c%d", w.r.IntN(claimNames))
	c := w.api[name]
	switch n := w.r.IntN(100); {
	case n < 15 && c == nil:
		w.uid++
		w.write(&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(strconv.Itoa(w.uid))}})
	case n < 22 && c != nil && c.Status.Allocation != nil: // its pods have ended
		o := c.DeepCopy()
		o.Status.Allocation = nil
		w.write(o)
	case n < 28 && c != nil && c.Status.Allocation == nil: // what has devices is not deleted
		o := c.DeepCopy()
		now := metav1.Now()
		o.DeletionTimestamp = &now
		w.write(o)
		delete(w.api, name)
	case n < 30:
		w.restart()
	case n < 33:
		w.relist()
	case n < 55:
		w.hear()
	case n < 80:
		w.schedule(name)
	case len(w.attempts) > 0:
		w.bind(w.r.IntN(len(w.attempts)))
	}
}

// TestHistories takes the tracker through histories of writes by others, late, doubled and lost events, and crashes: no
// device that is somebody's is ever free to it, and in the end it knows what the API has.
func TestHistories(t *testing.T) {
	histories := uint64(10000)
	if s := os.Getenv("BERTH_TEST_HISTORIES"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		histories = n
	}
	for seed := range histories {
		w := newWorld(t, seed)
		for range 60 {
			if w.step(); t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
		for len(w.events) > 0 {
			w.hear()
		}
		for len(w.attempts) > 0 {
			w.bind(0)
		}
		for len(w.events) > 0 {
			w.hear()
		}
		s, err := w.tracker.GatherAllocatedState()
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]bool{}
		for d := range w.taken() {
			want[d] = true
		}
		has := map[string]bool{}
		for id := range s.AllocatedDevices {
			has[id.Device.String()] = true
		}
		if !maps.Equal(has, want) || len(w.tracker.pending) > 0 {
			t.Fatalf("seed %d: it has %v, the API %v, and %d are pending", seed, has, want, len(w.tracker.pending))
		}
	}
}
