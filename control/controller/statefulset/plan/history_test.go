package plan_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-node/berth/control/controller/owned"
	"github.com/berth-node/berth/control/controller/statefulset/plan"
)

// histories is how many random histories are tried; HISTORIES says another number.
const histories = 10_000

var owner = cache.ObjectName{Namespace: "n", Name: "s"}

// world is an API server with one set and its pods, a watch of them, and a controller behind it.
type world struct {
	*testing.T
	random  *rand.Rand
	version int
	set     plan.Set
	pods    map[int]*pod // as they are
	events  []event      // on their way to the cache, each pod's in their order
	seen    *seen
	memory  *owned.Writes // of the controller, which a crash loses
	calm    bool          // nobody but the controller ends pods, and they do not fail
	log     []string
}

// pod is one of the API server: what a plan sees, and its identity.
type pod struct {
	plan.Pod
	uid     types.UID
	version int
}

type event struct {
	ordinal, version int
	pod              *pod // nil: it is gone
}

// seen is the cache.
type seen struct {
	pods    map[int]*pod
	version int
}

// GetByKey implements [owned.Cache].
func (s *seen) GetByKey(key string) (any, bool, error) {
	for _, p := range s.pods {
		if "n/"+strconv.Itoa(p.Ordinal) == key {
			return object(p), true, nil
		}
	}
	return nil, false, nil
}

// LastStoreSyncResourceVersion implements [owned.Cache].
func (s *seen) LastStoreSyncResourceVersion() string { return strconv.Itoa(s.version) }

func object(p *pod) *corev1.Pod {
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "n", Name: strconv.Itoa(p.Ordinal), UID: p.uid, ResourceVersion: strconv.Itoa(p.version),
	}}
	if p.Terminating {
		o.DeletionTimestamp = &metav1.Time{}
	}
	return o
}

func (w *world) say(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }

func (w *world) fail(format string, args ...any) {
	w.Helper()
	for _, line := range w.log {
		w.Log(line)
	}
	w.Fatalf(format, args...)
}

// changed tells the watch of a pod as it is now.
func (w *world) changed(ordinal int) {
	w.version++
	e := event{ordinal: ordinal, version: w.version}
	if p := w.pods[ordinal]; p != nil {
		p.version = w.version
		copied := *p
		e.pod = &copied
	}
	w.events = append(w.events, e)
}

// deliver has the cache hear of the next change, or of one that it has heard of before.
func (w *world) deliver() {
	if len(w.events) == 0 {
		return
	}
	e := w.events[0]
	if w.random.IntN(5) > 0 { // else it comes again
		w.events = w.events[1:]
	}
	w.hear(e)
}

func (w *world) hear(e event) {
	if e.pod == nil {
		delete(w.seen.pods, e.ordinal)
	} else {
		copied := *e.pod
		w.seen.pods[e.ordinal] = &copied
	}
	w.seen.version = max(w.seen.version, e.version)
}

// list has the cache read all anew, since the watch has broken: what was on its way is lost.
func (w *world) list() {
	w.events = nil
	w.seen.pods = map[int]*pod{}
	for o, p := range w.pods {
		copied := *p
		w.seen.pods[o] = &copied
	}
	w.seen.version = w.version
	w.say("the cache lists")
}

func (w *world) crash() {
	w.list()
	w.memory = owned.NewWrites(w.seen)
	w.say("the controller has crashed")
}

func plain(pods map[int]*pod) []plan.Pod {
	var all []plan.Pod
	for _, p := range pods {
		all = append(all, p.Pod)
	}
	slices.SortFunc(all, func(a, b plan.Pod) int { return a.Ordinal - b.Ordinal })
	return all
}

// sync is one look of the controller, which may crash between any two of its writes, or lose an answer.
func (w *world) sync() {
	if w.memory.Behind(owner) {
		return
	}
	pods := plain(w.seen.pods)
	steps := plan.Next(w.set, pods)
	w.judge(pods, steps)
	was := maps.Clone(w.seen.pods)
	for _, s := range steps {
		if w.random.IntN(40) == 0 {
			w.crash()
			return
		}
		w.take(s, was[s.Ordinal])
	}
	w.within()
}

func (w *world) take(s plan.Step, p *pod) {
	w.say("%s %d %s", s.Verb, s.Ordinal, s.Revision)
	switch s.Verb {
	case plan.Create:
		if w.pods[s.Ordinal] != nil {
			return // the name is taken
		}
		w.version++
		w.pods[s.Ordinal] = &pod{Pod: plan.Pod{Ordinal: s.Ordinal, Revision: s.Revision, Created: true}, uid: types.UID(strconv.Itoa(w.version))}
		w.changed(s.Ordinal)
		w.memory.Wrote(owner, object(w.pods[s.Ordinal]))
	case plan.Delete:
		now := w.pods[s.Ordinal]
		if now != nil && now.uid == p.uid && !now.Terminating {
			now.Terminating = true
			w.changed(s.Ordinal)
		}
		w.memory.Ended(owner, object(p))
	case plan.Repair:
		if now := w.pods[s.Ordinal]; now != nil && now.uid == p.uid && now.Broken {
			now.Broken = false
			w.changed(s.Ordinal)
			w.memory.Wrote(owner, object(now))
		}
	}
}

// within holds the world to what nobody but the controller can break: as many pods are unavailable as may be.
func (w *world) within() {
	if !w.calm || !w.set.Wants(w.set.Start) {
		return
	}
	missing := 0
	for o := w.set.Start; o < w.set.Start+w.set.Replicas; o++ {
		if p := w.pods[o]; p == nil || !p.Available || p.Terminating {
			missing++
		}
	}
	if missing > w.set.MaxUnavailable {
		w.fail("%d pods are unavailable, of %+v", missing, w.set)
	}
}

// kubelet brings one pod on.
func (w *world) kubelet() {
	all := plain(w.pods)
	if len(all) == 0 {
		return
	}
	p := w.pods[all[w.random.IntN(len(all))].Ordinal]
	switch {
	case p.Terminating:
		delete(w.pods, p.Ordinal)
	case p.Finished || p.Available:
		return
	case p.Ready:
		p.Available = true
	default:
		p.Ready = true
	}
	w.changed(p.Ordinal)
}

// trouble is what befalls a pod from outside.
func (w *world) trouble() {
	all := plain(w.pods)
	if len(all) == 0 {
		return
	}
	p := w.pods[all[w.random.IntN(len(all))].Ordinal]
	switch w.random.IntN(5) {
	case 0:
		p.Terminating = true
	case 1:
		p.Ready, p.Available = false, false
	case 2:
		p.Finished, p.Ready, p.Available = true, false, false
	case 3:
		p.Broken = true
	case 4:
		delete(w.pods, p.Ordinal)
	}
	w.say("trouble for %d: %+v", p.Ordinal, *p)
	w.changed(p.Ordinal)
}

// wish has the set want something else.
func (w *world) wish() {
	switch w.random.IntN(6) {
	case 0:
		w.set.Replicas = w.random.IntN(6)
	case 1:
		w.set.Start = w.random.IntN(3)
	case 2:
		w.set.Update = string(rune('a' + w.random.IntN(3)))
	case 3:
		w.set.Partition = w.random.IntN(4)
	case 4:
		w.set.MaxUnavailable = 1 + w.random.IntN(3)
	case 5:
		w.set.OnDelete = !w.set.OnDelete
	}
	w.say("wanted is %+v", w.set)
}

// quiet says whether nobody has anything left to do.
func (w *world) quiet() bool {
	return len(w.events) == 0 && len(w.pods) == w.set.Replicas && len(plan.Next(w.set, plain(w.pods))) == 0 &&
		!slices.ContainsFunc(plain(w.pods), func(p plan.Pod) bool { return !p.Available || p.Terminating })
}

// settle lets all go on without trouble, until nothing changes any more, and looks at what has come of it.
func (w *world) settle() {
	w.list()
	for range 400 {
		for range 3 {
			w.kubelet()
		}
		for len(w.events) > 0 {
			w.deliver()
		}
		if w.quiet() {
			break
		}
		w.sync()
	}
	for len(w.events) > 0 {
		w.deliver()
	}
	if w.memory.Behind(owner) {
		w.fail("the cache has heard of all, and counts as behind")
	}
	if steps := plan.Next(w.set, plain(w.pods)); len(steps) > 0 {
		w.fail("it does not settle: %v is next, of %+v with %+v", steps, w.set, plain(w.pods))
	}
	all := plain(w.pods)
	if len(all) != w.set.Replicas {
		w.fail("there are %+v, of %+v", all, w.set)
	}
	for i, p := range all {
		if p.Ordinal != w.set.Start+i || !p.Available || p.Terminating || p.Broken {
			w.fail("a pod is %+v, of %+v", p, w.set)
		}
		if !w.set.OnDelete && i >= w.set.Partition && p.Revision != w.set.Update {
			w.fail("pod %d is of %s, of %+v", p.Ordinal, p.Revision, w.set)
		}
	}
	w.set.Current = plan.Count(w.set, all).CurrentRevision
}

// TestHistories runs random histories of a set, with events that come late, twice, or never, crashes between any two
// writes, and trouble from outside. In calm ones nothing but an update happens, and as many pods are available as are
// to be, whatever the cache has not heard of.
func TestHistories(t *testing.T) {
	n := histories
	if text := os.Getenv("HISTORIES"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	seed := rand.Uint64()
	if text := os.Getenv("BERTH_TEST_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("BERTH_TEST_SEED=%d", seed)
	for i := range n {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		w := &world{T: t, random: random, pods: map[int]*pod{}, seen: &seen{pods: map[int]*pod{}}}
		w.memory = owned.NewWrites(w.seen)
		w.set = plan.Set{Replicas: 1 + random.IntN(5), Parallel: random.IntN(2) == 0, MaxUnavailable: 1 + random.IntN(2), Current: "a", Update: "a"}
		w.say("history %d: %+v", i, w.set)
		w.settle()
		w.calm = random.IntN(2) == 0
		if w.calm {
			w.set.Update = "b"
		}
		for range 60 {
			switch c := random.IntN(20); {
			case c < 6:
				w.sync()
			case c < 11:
				w.deliver()
			case c < 16:
				w.kubelet()
			case c == 16:
				w.list()
			case c == 17:
				w.crash()
			case !w.calm && c == 18:
				w.trouble()
			case !w.calm && random.IntN(3) == 0:
				w.wish()
			}
		}
		w.settle()
	}
}
