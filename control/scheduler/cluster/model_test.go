package cluster_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/control/scheduler/cluster"
	"github.com/berth-node/berth/control/scheduler/cluster/clustertest"
)

// world is a history: the API as it is, a watch of it that is late, repeats itself and breaks off, and a scheduler with
// a cache that assumes, binds, forgets and is killed.
type world struct {
	t       *testing.T
	r       *rand.Rand
	version int
	nodes   map[string]*corev1.Node
	pods    map[types.UID]*corev1.Pod
	// told are events that are on their way, of each object in their order; told of an object may be told again.
	told []event
	// known is what the watch has told of, by which a list after a break says what is gone.
	known map[string]event
	cache *cluster.Cache
	snap  *cluster.Snapshot
	// assumed are pods that were given a node and whose binding is on its way, and bound those of them that the API has
	// taken and not told of yet.
	assumed map[types.UID]string
	count   int
}

// event is one object as it was at one time; gone: it is not there any more.
type event struct {
	key  string
	node *corev1.Node
	pod  *corev1.Pod
	gone bool
}

func (w *world) next() string {
	w.version++
	return strconv.Itoa(w.version)
}

func (w *world) tell(e event) { w.told = append(w.told, e) }

func (w *world) setNode(name string) {
	n := node(name, strconv.Itoa(w.r.IntN(3)))
	n.ResourceVersion = w.next()
	w.nodes[name] = n
	w.tell(event{key: "node/" + name, node: n})
}

func (w *world) setPod(p *corev1.Pod) {
	c := p.DeepCopy()
	c.ResourceVersion = w.next()
	w.pods[c.UID] = c
	w.tell(event{key: "pod/" + string(c.UID), pod: c})
}

// handle is what the scheduler does when it is told.
func (w *world) handle(e event) {
	switch {
	case e.node != nil && e.gone:
		w.cache.DeleteNode(e.node.Name)
	case e.node != nil:
		w.cache.SetNode(e.node)
	case e.gone:
		w.cache.DeletePod(e.pod.UID)
		delete(w.assumed, e.pod.UID)
	case e.pod.Spec.NodeName != "" || cluster.Ended(e.pod):
		w.cache.SetPod(e.pod)
		delete(w.assumed, e.pod.UID)
	}
}

// deliver tells of something that is on its way: not of the first thing, but of none before another one of its object.
func (w *world) deliver() {
	if len(w.told) == 0 {
		return
	}
	i := w.r.IntN(len(w.told))
	for j := range i {
		if w.told[j].key == w.told[i].key {
			i = j
			break
		}
	}
	e := w.told[i]
	w.told = append(w.told[:i], w.told[i+1:]...)
	before, had := w.known[e.key]
	w.handle(e)
	if w.r.IntN(4) == 0 {
		w.handle(e) // twice
	}
	if had && !e.gone && before.pod != nil && before.pod.Spec.NodeName != "" && !cluster.Ended(e.pod) && w.r.IntN(4) == 0 {
		w.handle(before) // an older one of the same object once more
	}
	if had && !e.gone && before.node != nil && before.node.UID == e.node.UID && w.r.IntN(4) == 0 {
		w.handle(before)
	}
	if e.gone {
		delete(w.known, e.key)
	} else {
		w.known[e.key] = e
	}
}

// relist has all that was on its way be lost, and a new list say what is there.
func (w *world) relist() {
	w.told = nil
	now := map[string]event{}
	for name, n := range w.nodes {
		now["node/"+name] = event{key: "node/" + name, node: n}
	}
	for uid, p := range w.pods {
		now["pod/"+string(uid)] = event{key: "pod/" + string(uid), pod: p}
	}
	for key, e := range w.known {
		if _, there := now[key]; !there {
			e.gone = true
			w.handle(e) // as it was known, perhaps without the node that it had in the end
		}
	}
	for _, e := range now {
		w.handle(e)
	}
	w.known = now
}

// crash has the scheduler begin anew, with a list.
func (w *world) crash() {
	w.cache, w.snap = cluster.NewCache(), cluster.NewEmptySnapshot()
	w.known, w.assumed = map[string]event{}, map[types.UID]string{}
	w.relist()
}

func (w *world) anyPod(of func(*corev1.Pod) bool) *corev1.Pod {
	for i := range w.count { // not by the map's order, so that a seed is one history
		uid := types.UID(fmt.Sprintf("p%d", (i+w.version)%w.count))
		if p := w.pods[uid]; p != nil && of(p) {
			return p
		}
	}
	return nil
}

func (w *world) step() {
	switch w.r.IntN(12) {
	case 0:
		w.setNode(fmt.Sprintf("n%d", w.r.IntN(4)))
	case 1:
		name := fmt.Sprintf("n%d", w.r.IntN(4))
		if n := w.nodes[name]; n != nil && w.r.IntN(3) == 0 {
			delete(w.nodes, name)
			w.tell(event{key: "node/" + name, node: n, gone: true})
		}
	case 2, 3:
		p := pod(fmt.Sprintf("p%d", w.count), "", fmt.Sprintf("%dm", 100*(1+w.r.IntN(5))))
		w.count++
		w.setPod(p)
	case 4, 5:
		w.assume()
	case 6:
		w.bind()
	case 7:
		if p := w.anyPod(func(*corev1.Pod) bool { return true }); p != nil {
			delete(w.pods, p.UID)
			w.tell(event{key: "pod/" + string(p.UID), pod: p, gone: true})
		}
	case 8:
		if p := w.anyPod(func(p *corev1.Pod) bool { return p.Spec.NodeName != "" && !cluster.Ended(p) }); p != nil {
			p = p.DeepCopy()
			if p.Status.Phase = corev1.PodRunning; w.r.IntN(3) == 0 {
				p.Status.Phase = corev1.PodSucceeded
			}
			w.setPod(p)
		}
	case 9:
		if w.r.IntN(4) == 0 {
			w.relist()
		}
	case 10:
		if w.r.IntN(8) == 0 {
			w.crash()
		}
	}
	for range w.r.IntN(3) {
		w.deliver()
	}
}

// assume gives a pod a node that the scheduler knows of and that has none by all that it knows.
func (w *world) assume() {
	p := w.anyPod(func(p *corev1.Pod) bool {
		k := w.known["pod/"+string(p.UID)]
		return k.pod != nil && k.pod.Spec.NodeName == "" && w.cache.Pod(p.UID) == nil
	})
	if p == nil {
		return
	}
	c := w.known["pod/"+string(p.UID)].pod.DeepCopy()
	c.Spec.NodeName = fmt.Sprintf("n%d", w.r.IntN(4))
	info, err := cluster.NewPodInfo(c)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.cache.Assume(info); err != nil {
		w.t.Fatal(err)
	}
	w.assumed[c.UID] = c.Spec.NodeName
}

// bind brings a binding to its end: it is taken, refused, or taken with an answer that is lost.
func (w *world) bind() {
	p := w.anyPod(func(p *corev1.Pod) bool { _, ok := w.assumed[p.UID]; return ok })
	if p == nil {
		for uid := range w.assumed {
			if w.pods[uid] == nil { // the pod is gone, and the scheduler may not know of it
				w.cache.Forget(uid)
				delete(w.assumed, uid)
			}
		}
		return
	}
	on := w.assumed[p.UID]
	lost := w.r.IntN(4) == 0
	if p.Spec.NodeName == "" && w.r.IntN(4) > 0 {
		c := p.DeepCopy()
		if c.Spec.NodeName = on; w.r.IntN(8) == 0 {
			c.Spec.NodeName = "n0" // another scheduler was first
			lost = true
		}
		w.setPod(c)
	} else {
		lost = true
	}
	if lost {
		w.cache.Forget(p.UID)
		delete(w.assumed, p.UID)
	}
}

// check compares the snapshot with one that is made anew of what the scheduler knows and has assumed.
func (w *world) check(seed uint64, at int) {
	w.cache.Update(w.snap)
	var nodes []*corev1.Node
	var pods []*corev1.Pod
	for _, e := range w.known {
		switch {
		case e.node != nil:
			nodes = append(nodes, e.node)
		case e.pod.Spec.NodeName != "" && !cluster.Ended(e.pod):
			pods = append(pods, e.pod)
		}
	}
	for uid, on := range w.assumed {
		p := w.cache.Pod(uid)
		if p == nil || p.Spec.NodeName != on || !w.cache.Assumed(uid) {
			w.t.Fatalf("seed %d, step %d: pod %s was assumed on %s and is not", seed, at, uid, on)
		}
		pods = append(pods, p)
	}
	want := clustertest.Snapshot(pods, nodes)
	if w.snap.Len() != want.Len() || w.cache.Nodes() != want.Len() {
		w.t.Fatalf("seed %d, step %d: %d nodes, want %d", seed, at, w.snap.Len(), want.Len())
	}
	list, _ := w.snap.NodeInfos().List()
	for _, got := range list {
		name := got.Node().Name
		n, err := want.NodeInfos().Get(name)
		if err != nil {
			w.t.Fatalf("seed %d, step %d: %v", seed, at, err)
		}
		if len(got.GetPods()) != len(n.GetPods()) || got.GetRequested().GetMilliCPU() != n.GetRequested().GetMilliCPU() ||
			got.GetNonZeroRequested().GetMemory() != n.GetNonZeroRequested().GetMemory() || got.Node().ResourceVersion != n.Node().ResourceVersion {
			w.t.Fatalf("seed %d, step %d: %s, want %s", seed, at, got, n)
		}
		has := map[types.UID]string{}
		for _, p := range got.GetPods() {
			has[p.GetPod().UID] = p.GetPod().ResourceVersion
		}
		for _, p := range n.GetPods() {
			if version, there := has[p.GetPod().UID]; !there || version != p.GetPod().ResourceVersion {
				w.t.Fatalf("seed %d, step %d: node %s does not have pod %s of version %s", seed, at, name, p.GetPod().UID, p.GetPod().ResourceVersion)
			}
		}
	}
}

// TestHistories has the cache agree, after any history, with one that was made of what is known now.
// BERTH_TEST_HISTORIES is how many there are.
func TestHistories(t *testing.T) {
	histories := 10_000
	if n, err := strconv.Atoi(os.Getenv("BERTH_TEST_HISTORIES")); err == nil {
		histories = n
	}
	if testing.Short() {
		histories /= 10
	}
	for seed := range uint64(histories) {
		w := &world{
			t: t, r: rand.New(rand.NewPCG(seed, 1)), nodes: map[string]*corev1.Node{}, pods: map[types.UID]*corev1.Pod{},
			known: map[string]event{}, cache: cluster.NewCache(), snap: cluster.NewEmptySnapshot(), assumed: map[types.UID]string{}, count: 1,
		}
		for i := range 40 {
			if w.step(); i%8 == 7 {
				w.check(seed, i)
			}
		}
		w.relist()
		w.check(seed, 40)
	}
}
