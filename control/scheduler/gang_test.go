package scheduler

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
}

func newGangWorld(t *testing.T, seed uint64) *gangWorld {
	t.Helper()
	return &gangWorld{
		bench: newBench(t, 0), t: t, random: rand.New(rand.NewPCG(seed, 1)),
		alive: map[types.UID]*corev1.Pod{}, wants: map[string]int{}, bound: map[string]bool{},
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

func (w *gangWorld) pod(group string) {
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
		if missing := wants - on[group]; missing > 0 && all[group] >= wants && free >= missing {
			w.t.Fatalf("%s: gang %s has %d of %d pods and wants %d: it waits with room for %d", what, group, on[group], all[group], wants, free)
		}
	}
	if all[""] > on[""] && free > 0 {
		w.t.Fatalf("%s: pods of no gang wait with room for %d", what, free)
	}
}

// TestGangs has groups of pods, their pods and nodes come and pods go at random: no gang ever has fewer nodes than it
// wants, none waits for room that there is, so that no two hold one half each.
func TestGangs(t *testing.T) {
	histories, seed := 300, uint64(1)
	if text := os.Getenv("BERTH_TEST_HISTORIES"); text != "" {
		histories, _ = strconv.Atoi(text)
	}
	for i := range histories {
		w := newGangWorld(t, seed+uint64(i))
		w.node(1) // without any a pod is attempted by the clock
		for step := range 30 {
			what := w.step()
			w.settle(t.Context())
			w.check(fmt.Sprintf("history %d, step %d, %s", i, step, what))
		}
	}
}

func (w *gangWorld) step() string {
	group := fmt.Sprintf("group-%d", w.random.IntN(4))
	switch w.random.IntN(6) {
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
	}
	for range 1 + w.random.IntN(3) {
		w.pod(group)
	}
	return "pods"
}
