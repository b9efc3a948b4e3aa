package scheduler

import (
	"bytes"
	"io"
	"net/http"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/berth-node/berth/control/scheduler/config"
)

// ends is an API server that takes every write, and tells of pods that are deleted and groups that are to end.
type ends struct{ pods, groups chan string }

// RoundTrip implements [http.RoundTripper].
func (e ends) RoundTrip(r *http.Request) (*http.Response, error) {
	group := strings.Contains(r.URL.Path, "/podgroups/")
	body := `{"kind":"Pod","apiVersion":"v1"}`
	if group {
		body = `{"kind":"PodGroup","apiVersion":"scheduling.k8s.io/v1beta1"}`
	}
	sent, _ := io.ReadAll(r.Body)
	switch {
	case r.Method == http.MethodDelete:
		e.pods <- path.Base(r.URL.Path)
	case group && bytes.Contains(sent, []byte(schedulingv1beta1.DisruptionTarget)):
		e.groups <- path.Base(path.Dir(r.URL.Path))
	}
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: r,
	}, nil
}

// roomWorld is a gangWorld whose pods and groups have priorities, and end for each other.
type roomWorld struct {
	*gangWorld

	ends ends
}

func newRoomWorld(t *testing.T) *roomWorld {
	t.Helper()
	e := ends{make(chan string, 100), make(chan string, 100)}
	w := newGangWorld(t, 1)
	w.bench = newBenchWith(t, 0, e)
	w.write = func(pod *corev1.Pod) (bool, error) {
		w.binding.Lock()
		defer w.binding.Unlock()
		w.alive[pod.UID] = pod
		return true, w.bench.pods.Update(pod)
	}
	return &roomWorld{w, e}
}

// ranked makes a group of a priority; whole: all of it ends together.
func (w *roomWorld) ranked(name string, wants int, priority int32, whole bool) {
	w.group(name, wants)
	for _, o := range w.groups.List() {
		if g, ok := o.(*schedulingv1beta1.PodGroup); ok && g.Name == name {
			g.Spec.Priority = &priority
			if whole {
				g.Spec.DisruptionMode = &schedulingv1beta1.DisruptionMode{All: &schedulingv1beta1.AllDisruptionMode{}}
			}
		}
	}
}

// several makes pods of a group and a priority.
func (w *roomWorld) several(n int, group string, priority int32, change func(*corev1.Pod)) {
	for range n {
		w.podWith(group, func(pod *corev1.Pod) {
			pod.Spec.Priority = &priority
			if change != nil {
				change(pod)
			}
		})
	}
	w.settle(w.t.Context())
}

// victims are so many pods that end, by name; they are gone then.
func (w *roomWorld) victims(n int) []string {
	w.t.Helper()
	var names []string
	for range n {
		names = append(names, <-w.ends.pods)
	}
	for _, name := range names {
		w.end(w.alive[types.UID(name)])
	}
	w.settle(w.t.Context())
	slices.Sort(names)
	return names
}

func (w *roomWorld) on(group string) int {
	n := 0
	for _, pod := range w.alive {
		if g := pod.Spec.SchedulingGroup; (g == nil && group == "" || g != nil && *g.PodGroupName == group) && pod.Spec.NodeName != "" {
			n++
		}
	}
	return n
}

// TestRoomForGang has a gang come where others of less priority have all there is: as many end as it needs, those whose
// budget does not allow it last.
func TestRoomForGang(t *testing.T) {
	w := newRoomWorld(t)
	w.node(4) // with others who ends depends on which of them the gang is to come to
	w.several(3, "", 1, nil)
	w.several(1, "", 0, func(pod *corev1.Pod) { pod.Labels = map[string]string{"kept": ""} })
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kept"}}
	budget.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"kept": ""}}
	if err := w.informers.Policy().V1().PodDisruptionBudgets().Informer().GetIndexer().Add(budget); err != nil {
		t.Fatal(err)
	}
	w.ranked("gang", 3, 100, false)
	w.several(3, "gang", 100, nil)
	names := w.victims(3)
	if slices.ContainsFunc(names, func(name string) bool { return w.alive[types.UID(name)] != nil }) || w.on("") != 1 || w.on("gang") != 3 {
		t.Fatalf("%v end, %d others and %d of the gang have nodes", names, w.on(""), w.on("gang"))
	}
	for _, pod := range w.alive {
		if pod.Spec.SchedulingGroup == nil && pod.Labels == nil {
			t.Errorf("%s has stayed, and one that is to be kept has not", pod.Name)
		}
	}
}

// TestNoRoomForGang has gangs come for which nothing may end: nobody does.
func TestNoRoomForGang(t *testing.T) {
	for name, arrange := range map[string]func(*roomWorld){
		"more than there is": func(w *roomWorld) {
			w.ranked("gang", 5, 100, false)
			w.several(5, "gang", 100, nil)
		},
		"no more important": func(w *roomWorld) {
			w.ranked("gang", 3, 1, false)
			w.several(3, "gang", 1, nil)
		},
		"never": func(w *roomWorld) {
			w.ranked("gang", 3, 100, false)
			never := corev1.PreemptNever
			w.several(3, "gang", 100, func(pod *corev1.Pod) { pod.Spec.PreemptionPolicy = &never })
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newRoomWorld(t)
			w.node(4)
			w.several(4, "", 1, nil)
			arrange(w)
			// Victims would be noted before the attempt is over.
			if w.on("") != 4 || w.on("gang") != 0 || w.nominated() > 0 {
				t.Errorf("%d others and %d of the gang have nodes, and %d are to come to one", w.on(""), w.on("gang"), w.nominated())
			}
		})
	}
}

// nominated is how many pods are to come to a node when others have ended.
func (w *roomWorld) nominated() int {
	n := 0
	for uid := range w.alive {
		if w.s.shared.Nominator.Node(uid) != "" {
			n++
		}
	}
	return n
}

// TestWholeGroupEnds has room made by the end of a group that ends together or not at all: for a gang, and for one pod.
func TestWholeGroupEnds(t *testing.T) {
	for name, come := range map[string]func(*roomWorld){
		"for a gang": func(w *roomWorld) {
			w.ranked("gang", 1, 100, false)
			w.several(1, "gang", 100, nil)
		},
		"for a pod": func(w *roomWorld) { w.several(1, "", 100, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newRoomWorld(t)
			w.node(1)
			w.node(1)
			w.ranked("whole", 2, 1, true)
			w.several(2, "whole", 1, nil)
			if w.on("whole") != 2 {
				t.Fatalf("%d of the group have nodes", w.on("whole"))
			}
			come(w)
			if group := <-w.ends.groups; group != "whole" {
				t.Errorf("group %s is said to end", group)
			}
			w.victims(2)
			if w.on("whole") != 0 || w.on("gang")+w.on("") != 1 {
				t.Errorf("%d of the group have nodes, and %d others", w.on("whole"), w.on("gang")+w.on(""))
			}
		})
	}
}

// TestEndedOnce has a pod be attempted again and again before the API says what was ended for it: nobody else ends.
func TestEndedOnce(t *testing.T) {
	w := newRoomWorld(t)
	w.node(1)
	w.node(1)
	w.several(2, "", 1, nil)
	w.several(1, "", 100, nil)
	victim := <-w.ends.pods
	for range 10 {
		all := map[string]*corev1.Pod{}
		for _, pod := range w.alive {
			all[pod.Name] = pod
		}
		w.s.queue.Activate(klog.Logger{}, all)
		w.settle(t.Context())
	}
	if w.nominated() != 1 {
		t.Errorf("%d pods are to come to a node", w.nominated())
	}
	w.end(w.alive[types.UID(victim)])
	w.settle(t.Context())
	if w.on("") != 2 || w.nominated() != 0 || len(w.ends.pods) > 0 {
		t.Errorf("%d pods have nodes, %d are to come to one, %d more have ended", w.on(""), w.nominated(), len(w.ends.pods))
	}
}

// TestEndedForNobody has a pod be deleted while others end for it: the rest of them stay.
func TestEndedForNobody(t *testing.T) {
	w := newRoomWorld(t)
	w.ends.pods = make(chan string) // each ends when the test hears of it
	w.bench = newBenchWith(t, 0, w.ends)
	w.node(10)
	w.several(10, "", 1, nil)
	w.several(1, "", 100, func(pod *corev1.Pod) {
		pod.Name, pod.UID = "large", "large"
		pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("9")
	})
	large := w.alive["large"]
	w.end(large)
	ended := 0 // of which one may have been under way when it was deleted
	for !w.done(large) {
		select {
		case <-w.ends.pods:
			ended++
		case <-time.After(time.Millisecond):
		}
	}
	if ended > 1 {
		t.Errorf("%d end for nobody", ended-1)
	}
	if w.nominated() > 0 || w.s.shared.Nominator.Node("large") != "" {
		t.Error("room is kept for nobody")
	}
}

// done says whether nobody is being ended for a pod any more.
func (w *roomWorld) done(pod *corev1.Pod) bool {
	for _, plugin := range w.s.profiles[config.DefaultScheduler].PreEnqueue() {
		if !plugin.PreEnqueue(w.t.Context(), pod).IsSuccess() {
			return false
		}
	}
	return true
}

// TestForgedRoom has pods that never can come say in their status that they are to come to a node: others do.
func TestForgedRoom(t *testing.T) {
	never := corev1.PreemptNever
	for name, change := range map[string]func(*corev1.Pod){
		"it waits for its gates": func(pod *corev1.Pod) {
			pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.org/gate"}}
		},
		"it is too large": func(pod *corev1.Pod) {
			pod.Spec.PreemptionPolicy = &never
			pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("100")
		},
		"no node is its": func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{"no": "such"} },
		"it is deleted":  func(pod *corev1.Pod) { pod.DeletionTimestamp = new(metav1.Now()) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newRoomWorld(t)
			w.node(4)
			w.several(20, "", 100, func(pod *corev1.Pod) {
				pod.Status.NominatedNodeName = "node-1"
				change(pod)
			})
			if w.nominated() > 0 {
				t.Errorf("room is kept for %d of them", w.nominated())
			}
			// They say so again while they wait.
			for _, pod := range w.alive {
				was := *pod
				was.Status.NominatedNodeName = ""
				w.s.podChanged(t.Context(), &was, pod)
			}
			w.several(4, "", 100, nil)
			if w.on("") != 4 {
				t.Errorf("%d of others have nodes", w.on(""))
			}
		})
	}
}
