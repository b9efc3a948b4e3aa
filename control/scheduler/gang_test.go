package scheduler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/config"
)

// gangWorld is groups of pods that ask for a processor each, and nodes that have some.
type gangWorld struct {
	*bench

	t      *testing.T
	random *rand.Rand
	alive  map[types.UID]*corev1.Pod
	wants  map[string]int  // of groups, by name
	bound  map[string]bool // groups that have had their nodes once
	slots  int
	made   int

	// nodes are what the scheduler is told of again after a crash, which comes after so many more bindings (-1: none
	// does). late are bindings that it has not heard of yet.
	nodes   []*corev1.Node
	binding sync.Mutex
	crash   int
	late    map[types.UID]*corev1.Pod
}

var errDead = errors.New("bind pod: the process has ended")

func newGangWorld(t *testing.T, seed uint64) *gangWorld {
	t.Helper()
	w := &gangWorld{
		bench: newBench(t, 0), t: t, random: rand.New(rand.NewPCG(seed, 1)),
		alive: map[types.UID]*corev1.Pod{}, wants: map[string]int{}, bound: map[string]bool{}, crash: -1, late: map[types.UID]*corev1.Pod{},
	}
	w.write = w.bind
	return w
}

// bind has the API say that a pod is bound, unless the process has ended before. The scheduler hears of some late.
func (w *gangWorld) bind(pod *corev1.Pod) (bool, error) {
	w.binding.Lock()
	defer w.binding.Unlock()
	if w.crash == 0 {
		return false, errDead
	}
	if w.crash > 0 {
		w.crash--
	}
	w.alive[pod.UID] = pod
	if err := w.bench.pods.Update(pod); err != nil {
		return false, err
	}
	if w.random.IntN(3) > 0 {
		return true, nil
	}
	w.late[pod.UID] = pod
	return false, nil
}

// hear has the scheduler hear of what it has not, and of some things twice. It is in any order.
func (w *gangWorld) hear() {
	for uid, pod := range w.late {
		delete(w.late, uid)
		was := *pod
		was.Spec.NodeName = ""
		w.s.podChanged(w.t.Context(), &was, pod)
	}
	for _, pod := range w.alive {
		if w.random.IntN(8) == 0 {
			w.s.podChanged(w.t.Context(), pod, pod)
		}
	}
}

// restart is what comes after a crash: a scheduler that knows nothing but what the API tells it, in any order.
func (w *gangWorld) restart() {
	groups := w.bench.groups.List()
	w.bench, w.crash, w.late = newBench(w.t, 0), -1, map[types.UID]*corev1.Pod{}
	w.write = w.bind
	on := map[string]int{}
	for _, o := range groups {
		if err := w.bench.groups.Add(o); err != nil {
			w.t.Fatal(err)
		}
	}
	for _, pod := range w.alive {
		if err := w.bench.pods.Add(pod); err != nil {
			w.t.Fatal(err)
		}
		if pod.Spec.NodeName == "" {
			w.all.Add(1)
		} else if g := pod.Spec.SchedulingGroup; g != nil {
			on[*g.PodGroupName]++
		}
	}
	for group := range on {
		w.bound[group] = true // or a part of it, which cannot be undone
	}
	for _, n := range w.nodes {
		w.s.cache.SetNode(n)
	}
	for _, pod := range w.alive {
		w.s.podChanged(w.t.Context(), nil, pod)
	}
}

func (w *gangWorld) node(slots int) {
	w.made++
	w.slots += slots
	name := fmt.Sprintf("node-%d", w.made)
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	n.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU: *resource.NewQuantity(int64(slots), resource.DecimalSI), corev1.ResourcePods: resource.MustParse("110"),
	}
	w.nodes = append(w.nodes, n)
	w.s.cache.SetNode(n)
	w.s.queue.Happened(w.t.Context(), fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add}, nil, n)
}

func (w *gangWorld) group(name string, wants int) {
	w.wants[name] = wants
	g := &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}}
	g.Spec.SchedulingPolicy.Gang = &schedulingv1beta1.GangSchedulingPolicy{MinCount: int32(wants)}
	if err := w.groups.Add(g); err != nil {
		w.t.Fatal(err)
	}
	w.s.queue.Happened(w.t.Context(), fwk.ClusterEvent{Resource: fwk.PodGroup, ActionType: fwk.Add}, nil, g)
}

func (w *gangWorld) pod(group string) { w.podWith(group, nil) }

func (w *gangWorld) podWith(group string, change func(*corev1.Pod)) {
	w.made++
	name := fmt.Sprintf("pod-%d", w.made)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec: corev1.PodSpec{SchedulerName: config.DefaultScheduler, Containers: []corev1.Container{{
			Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
		}}},
	}
	if group != "" {
		pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &group}
	}
	if change != nil {
		change(pod)
	}
	w.alive[pod.UID] = pod
	if err := w.pods.Add(pod); err != nil {
		w.t.Fatal(err)
	}
	w.all.Add(1)
	w.s.podChanged(w.t.Context(), nil, pod)
}

// end has a pod be gone.
func (w *gangWorld) end(pod *corev1.Pod) {
	if placed := w.s.cache.Pod(pod.UID); placed != nil {
		pod = placed
	}
	delete(w.alive, pod.UID)
	delete(w.late, pod.UID)
	if err := w.pods.Delete(pod); err != nil {
		w.t.Fatal(err)
	}
	w.s.podChanged(w.t.Context(), pod, nil)
}

// settle has all pods attempted until nobody is next.
func (w *gangWorld) settle(ctx context.Context) {
	for range 1000 {
		if active, backoff, _, _ := w.s.queue.Counts(); active+backoff == 0 {
			return
		}
		w.s.attempt(ctx, w.s.queue.Pop())
		w.s.binding.Wait()
		if w.crash == 0 {
			w.restart()
		}
	}
	w.t.Fatal("pods are attempted without end")
}

// check holds the world to what a gang is.
func (w *gangWorld) check(what string) {
	w.t.Helper()
	on, all, free := map[string]int{}, map[string]int{}, w.slots
	for uid, pod := range w.alive {
		group := ""
		if g := pod.Spec.SchedulingGroup; g != nil {
			group = *g.PodGroupName
		}
		all[group]++
		if w.s.cache.Pod(uid) != nil {
			on[group]++
			free--
		}
	}
	if free < 0 {
		w.t.Fatalf("%s: nodes are given more than they have: %d", what, -free)
	}
	for group, wants := range w.wants {
		if on[group] > 0 && on[group] < wants && !w.bound[group] {
			w.t.Fatalf("%s: %d of %d pods of gang %s have nodes, which wants %d", what, on[group], all[group], group, wants)
		}
		if on[group] >= wants {
			w.bound[group] = true
		}
		missing := wants - on[group]
		if missing > 0 && all[group] >= wants && free >= missing {
			w.t.Fatalf("%s: gang %s has %d of %d pods and wants %d: it waits with room for %d", what, group, on[group], all[group], wants, free)
		}
		w.reported(what, group, missing <= 0, missing > 0 && all[group] >= wants)
	}
	if all[""] > on[""] && free > 0 {
		w.t.Fatalf("%s: pods of no gang wait with room for %d", what, free)
	}
}

// reported holds what is to be told of a group to whether it has its nodes, or waits for them.
func (w *gangWorld) reported(what, group string, has, waits bool) {
	w.t.Helper()
	out := w.s.groupWriter.out
	out.mu.Lock()
	n := out.latest[cache.ObjectName{Namespace: "default", Name: group}]
	out.mu.Unlock()
	switch {
	case has && len(w.late) == 0 && (n == nil || n.condition.Status != metav1.ConditionTrue):
		w.t.Fatalf("%s: gang %s has its nodes, and nobody is told", what, group)
	case waits && (n == nil || n.condition.Status == metav1.ConditionFalse && n.condition.Message == ""):
		w.t.Fatalf("%s: gang %s waits for nodes, and nobody is told why", what, group)
	}
}

// TestGangs has groups of pods, their pods and nodes come and pods go at random: no gang ever has fewer nodes than it
// wants, none waits for room that there is, so that no two hold one half each. The scheduler hears of bindings late, in
// another order, twice or never, and ends in the midst of binding a gang, the rest of which is placed by the next one.
func TestGangs(t *testing.T) {
	histories, seed := 200, uint64(1)
	if text := os.Getenv("BERTH_TEST_HISTORIES"); text != "" {
		histories, _ = strconv.Atoi(text)
	}
	for i := range histories {
		w := newGangWorld(t, seed+uint64(i))
		w.node(1) // without any a pod is attempted by the clock
		for step := range 30 {
			what := w.step()
			if w.random.IntN(2) == 0 {
				w.hear()
			}
			w.settle(t.Context())
			w.check(fmt.Sprintf("history %d, step %d, %s", i, step, what))
		}
	}
}

func (w *gangWorld) step() string {
	group := fmt.Sprintf("group-%d", w.random.IntN(4))
	switch w.random.IntN(7) {
	case 0:
		w.node(1 + w.random.IntN(4))
		return "node"
	case 1:
		if w.wants[group] == 0 {
			w.group(group, 1+w.random.IntN(5))
		}
		return "group"
	case 2:
		for _, pod := range w.alive { // any of them
			w.end(pod)
			break
		}
		return "end"
	case 3:
		w.pod("")
		return "pod"
	case 4:
		w.crash = w.random.IntN(4)
		if w.crash == 0 {
			w.restart()
		}
		return "crash"
	}
	for range 1 + w.random.IntN(3) {
		w.pod(group)
	}
	return "pods"
}
