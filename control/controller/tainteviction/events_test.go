package tainteviction

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
)

// told is a controller of one node and one pod on it, whose caches the test fills.
type told struct {
	*evicter

	t      *testing.T
	client *fake.Clientset
	nodes  cache.Store
	pods   cache.Store
	events *record.FakeRecorder
	clock  time.Time
}

var victim = cache.NewObjectName("default", "victim")

func newTold(t *testing.T) *told {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: victim.Namespace, Name: victim.Name, UID: "1"},
		Spec: corev1.PodSpec{NodeName: "node", Tolerations: []corev1.Toleration{
			{Key: "wait", Operator: corev1.TolerationOpExists, TolerationSeconds: new(int64(30))},
			{Key: "stay", Operator: corev1.TolerationOpExists},
		}},
	}
	f := informers.NewSharedInformerFactory(fake.NewClientset(), 0).Core().V1()
	w := &told{
		t: t, client: fake.NewClientset(pod), nodes: f.Nodes().Informer().GetStore(), pods: f.Pods().Informer().GetStore(),
		events: record.NewFakeRecorder(8), clock: time.Unix(1_700_000_000, 0),
	}
	w.evicter = &evicter{
		client: w.client, nodes: f.Nodes().Lister(), pods: f.Pods().Lister(), events: w.events,
		now: func() time.Time { return w.clock }, due: map[cache.ObjectName]types.UID{},
	}
	w.put(w.pods, pod)
	return w
}

func (w *told) put(s cache.Store, o any) {
	w.t.Helper()
	if err := s.Add(o); err != nil {
		w.t.Fatal(err)
	}
}

// tainted has the node have these taints, and no others.
func (w *told) tainted(keys ...string) {
	w.t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}
	for _, k := range keys {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: k, Effect: corev1.TaintEffectNoExecute, TimeAdded: new(metav1.NewTime(w.clock))})
	}
	w.put(w.nodes, n)
}

// says requires that a look at the pod leads to these events, and that nothing is remembered that is not waited for.
func (w *told) says(left time.Duration, events ...string) {
	w.t.Helper()
	again, err := w.sync(w.t.Context(), victim)
	if err != nil || again != left {
		w.t.Errorf("it is looked at again in %s, want %s: %v", again, left, err)
	}
	for _, want := range events {
		select {
		case got := <-w.events.Events:
			if got != want {
				w.t.Errorf("it says %q, want %q", got, want)
			}
		default:
			w.t.Errorf("it does not say %q", want)
		}
	}
	select {
	case got := <-w.events.Events:
		w.t.Errorf("it says %q", got)
	default:
	}
	if waits := len(w.due) > 0; waits != (left > 0) {
		w.t.Errorf("it remembers %v", w.due)
	}
}

const (
	marked    = "Normal TaintManagerEviction Marking for deletion Pod default/victim"
	cancelled = "Normal TaintManagerEviction Cancelling deletion of Pod default/victim"
)

// TestTells has a pod wait for its end, be spared, wait again and end.
func TestTells(t *testing.T) {
	w := newTold(t)
	w.tainted("stay")
	w.says(0)
	w.tainted("wait")
	w.says(30 * time.Second)
	w.clock = w.clock.Add(10 * time.Second)
	w.says(20 * time.Second)
	w.tainted("stay")
	w.says(0, cancelled)
	w.says(0)
	w.tainted("wait")
	w.says(30 * time.Second)
	w.clock = w.clock.Add(30 * time.Second)
	w.says(0, marked)
	if _, err := w.client.CoreV1().Pods(victim.Namespace).Get(t.Context(), victim.Name, metav1.GetOptions{}); err == nil {
		t.Error("the pod is there")
	}
}

// TestTellsNoMore has what waits for its end go otherwise: nobody cancels it, and nothing of it is remembered.
func TestTellsNoMore(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*told)
		events []string
	}{
		"the pod is gone":     {change: func(w *told) { w.drop(w.pods, victim.String()) }},
		"the node is gone":    {change: func(w *told) { w.drop(w.nodes, "node") }},
		"somebody deletes it": {change: func(w *told) { w.again("1", new(metav1.NewTime(w.clock))) }},
		// Of the name is another, which never waited.
		"another pod": {change: func(w *told) { w.again("2", nil); w.tainted() }},
		"at once":     {change: func(w *told) { w.tainted("wait", "go") }, events: []string{marked}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTold(t)
			w.tainted("wait")
			w.says(30 * time.Second)
			c.change(w)
			w.says(0, c.events...)
		})
	}
}

func (w *told) drop(s cache.Store, key string) {
	w.t.Helper()
	o, _, _ := s.GetByKey(key)
	if err := s.Delete(o); err != nil {
		w.t.Fatal(err)
	}
}

// again has the pod be of another UID, or be deleted.
func (w *told) again(uid types.UID, deleted *metav1.Time) {
	w.t.Helper()
	o, _, _ := w.pods.GetByKey(victim.String())
	p := o.(*corev1.Pod).DeepCopy()
	p.UID, p.DeletionTimestamp = uid, deleted
	w.put(w.pods, p)
}

// TestTellsOfWhatIsDone has the API server refuse: nothing is said of a pod that stays.
func TestTellsOfWhatIsDone(t *testing.T) {
	w := newTold(t)
	refused := errors.New("refused")
	w.client.PrependReactor("delete", "pods", func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, refused })
	w.tainted("go")
	if _, err := w.sync(t.Context(), victim); !errors.Is(err, refused) {
		t.Errorf("it says %v", err)
	}
	if len(w.events.Events) > 0 {
		t.Errorf("it says %q", <-w.events.Events)
	}
}
