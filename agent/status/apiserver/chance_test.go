package apiserver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/desired"
)

// line is a client of a server behind a bad line: calls fail, answers are lost, and what was given up arrives later.
type line struct {
	*server
	calls sync.WaitGroup

	mu   sync.Mutex
	rand *rand.Rand
	bad  bool
}

func (l *line) n(most int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.bad {
		return most - 1
	}
	return l.rand.IntN(most)
}

func (l *line) through(ctx context.Context, do func(ctx context.Context) error) error {
	switch l.n(12) {
	case 0:
		return errors.New("connection refused")
	case 1:
		return apierrors.NewTooManyRequests("busy", 1)
	case 2:
		return apierrors.NewInternalError(errors.New("no leader"))
	}
	late := time.Duration(0)
	switch l.n(6) {
	case 0:
		late = time.Duration(l.n(8000)) * time.Millisecond
	case 1:
		late = time.Duration(l.n(50)) * time.Millisecond
	}
	lost := l.n(10) == 0
	done := make(chan error, 1)
	// Cut off from the context: what is on its way arrives.
	l.calls.Go(func() {
		time.Sleep(late)
		done <- do(context.WithoutCancel(ctx))
	})
	select {
	case err := <-done:
		if lost {
			return errors.New("connection reset")
		}
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// List implements [Client].
func (l *line) List(ctx context.Context, res schema.GroupVersionResource, namespace string, o metav1.ListOptions, into runtime.Object) error {
	var got corev1.PodList
	err := l.through(ctx, func(ctx context.Context) error { return l.server.List(ctx, res, namespace, o, &got) })
	if err == nil {
		got.DeepCopyInto(into.(*corev1.PodList))
	}
	return err
}

// Create implements [Client].
func (l *line) Create(ctx context.Context, res schema.GroupVersionResource, o interface {
	metav1.Object
	runtime.Object
}, into runtime.Object, sub ...string,
) error {
	var got corev1.Pod
	err := l.through(ctx, func(ctx context.Context) error { return l.server.Create(ctx, res, o, &got, sub...) })
	if err == nil {
		got.DeepCopyInto(into.(*corev1.Pod))
	}
	return err
}

// Patch implements [Client].
func (l *line) Patch(
	ctx context.Context, res schema.GroupVersionResource, key types.NamespacedName, kind types.PatchType, data []byte,
	into runtime.Object, sub ...string,
) error {
	var got corev1.Pod
	err := l.through(ctx, func(ctx context.Context) error { return l.server.Patch(ctx, res, key, kind, data, &got, sub...) })
	if err == nil {
		got.DeepCopyInto(into.(*corev1.Pod))
	}
	return err
}

// Delete implements [Client].
func (l *line) Delete(ctx context.Context, res schema.GroupVersionResource, key types.NamespacedName, o metav1.DeleteOptions) error {
	return l.through(ctx, func(ctx context.Context) error { return l.server.Delete(ctx, res, key, o) })
}

// life is what happens to one pod.
type life struct {
	t    *testing.T
	rand *rand.Rand
	w    *Writer
	s    *server
	pod  *corev1.Pod

	phase    corev1.PodPhase
	ready    bool
	restarts int32
	moved    time.Time // when ready changed last
	last     *corev1.Pod
	deleted  bool
}

// status is what the node says now.
func (l *life) status() *corev1.Pod {
	p := as(l.pod, l.phase, l.ready)
	p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(l.moved)
	p.Status.ContainerStatuses[0].RestartCount = l.restarts
	// Of others, and not the node's to send.
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: "gate", Status: corev1.ConditionFalse})
	p.Status.QOSClass, p.Status.ResourceClaimStatuses = corev1.PodQOSGuaranteed, []corev1.PodResourceClaimStatus{{Name: "no"}}
	return p
}

func (l *life) step() {
	set := func(ready bool) {
		if ready != l.ready {
			l.ready, l.moved = ready, time.Now()
		}
	}
	switch n := l.rand.IntN(20); {
	case l.deleted:
		return
	case n < 4 && l.phase == corev1.PodPending:
		l.phase = corev1.PodRunning
	case n < 8 && l.phase == corev1.PodRunning:
		set(!l.ready)
	case n < 10 && l.phase == corev1.PodRunning && l.pod.Spec.RestartPolicy != corev1.RestartPolicyNever:
		l.restarts++
		set(false)
	case n == 10 && l.phase == corev1.PodRunning:
		l.phase = corev1.PodSucceeded
		set(false)
	case n == 11:
		// An agent that was restarted knows less for a moment.
		p := l.status()
		p.Status.Phase, p.Status.ContainerStatuses[0].RestartCount = corev1.PodPending, 0
		p.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}
		p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(l.moved.Add(-time.Hour))
		l.w.Put(p)
		time.Sleep(time.Duration(l.rand.IntN(500)) * time.Millisecond)
	case n == 12 && !desired.OriginOf(l.pod).Rules().Manifest:
		l.s.change(keyOf(l.pod), func(p *corev1.Pod) {
			p.Status.Conditions = append([]corev1.PodCondition{{Type: "gate", Status: corev1.ConditionTrue}}, without(p.Status.Conditions, "gate")...)
		})
	case n == 13:
		l.end()
		return
	}
	l.last = l.status()
	l.w.Put(l.last)
}

func without(list []corev1.PodCondition, t corev1.PodConditionType) []corev1.PodCondition {
	var out []corev1.PodCondition
	for _, c := range list {
		if c.Type != t {
			out = append(out, c)
		}
	}
	return out
}

// end deletes the pod.
func (l *life) end() {
	l.deleted = true
	if desired.OriginOf(l.pod) != desired.API {
		l.w.Delete(l.pod)
		return
	}
	l.s.change(keyOf(l.pod), func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) })
	if l.rand.IntN(2) == 0 && l.phase != corev1.PodSucceeded {
		l.phase = corev1.PodFailed
		l.w.Put(l.status())
	}
	gone := l.pod.DeepCopy()
	gone.DeletionTimestamp = new(metav1.Now())
	l.w.Delete(gone)
}

// resume is what a new agent says of the pod: what it finds, and that nothing is there of one that is being deleted.
func (l *life) resume(w *Writer) {
	l.w = w
	switch {
	case !l.deleted && l.last != nil:
		w.Put(l.last)
	case l.deleted && desired.OriginOf(l.pod) == desired.API && l.s.get(keyOf(l.pod)) != nil:
		gone := l.pod.DeepCopy()
		gone.DeletionTimestamp = new(metav1.Now())
		w.Delete(gone)
	}
}

// TestByChance has lives go on behind a bad line, and agents be killed. In the end the server has what the node has
// said last, and at no time has it had anything that goes backwards.
func TestByChance(t *testing.T) {
	seed := rand.Uint64()
	for i := range 150 {
		t.Run(fmt.Sprint(seed, "-", i), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { byChance(t, rand.New(rand.NewPCG(seed, uint64(i)))) })
		})
	}
}

func byChance(t *testing.T, r *rand.Rand) {
	s := newServer(t)
	l := &line{server: s, rand: rand.New(rand.NewPCG(r.Uint64(), 0)), bad: true}
	settings := func(c *Config) { c.Client, c.Timeout, c.Parallel, c.Log = l, 2*time.Second, 4, nil }
	w, kill := beginUntil(t, s, settings)
	watch := watching(t, s, w, l)
	var lives []*life
	for n := range 6 {
		pod := apiPod(fmt.Sprint("p", n))
		if n%2 == 0 {
			pod.Spec.RestartPolicy = corev1.RestartPolicyNever
		}
		if n < 2 {
			pod = staticPod(pod.Name, pod.Name+"-one")
		} else {
			s.add(pod)
		}
		lives = append(lives, &life{t: t, rand: r, w: w, s: s, pod: pod, phase: corev1.PodPending, moved: time.Now()})
	}
	watch.listed()
	for n := range 60 {
		if n%20 == 19 {
			kill()
			w, kill = beginUntil(t, s, settings)
			for _, one := range lives {
				one.resume(w)
			}
			watch.restart(s, w)
		}
		lives[r.IntN(len(lives))].step()
		time.Sleep(time.Duration(r.IntN(400)) * time.Millisecond)
	}
	l.mu.Lock()
	l.bad = false
	l.mu.Unlock()
	time.Sleep(time.Minute)
	l.calls.Wait()
	settle(t, w)
	time.Sleep(time.Minute)
	n := len(s.writes())
	for _, one := range lives {
		if one.last != nil && !one.deleted {
			w.Put(one.last)
		}
	}
	time.Sleep(time.Minute)
	if more := s.writes()[n:]; len(more) > 0 {
		t.Errorf("what has not changed is written: %q", more)
	}
	for _, one := range lives {
		one.check()
	}
	kill()
	forwards(t, s.history)
}

// check holds what the server has to what the node has said last.
func (l *life) check() {
	has := l.s.get(keyOf(l.pod))
	switch {
	case l.deleted && has != nil:
		l.t.Errorf("%s is deleted, and there with %+v", l.pod.Name, has)
	case l.deleted || l.last == nil:
	case has == nil:
		l.t.Errorf("%s is not there", l.pod.Name)
	default:
		same := merge(l.last, &has.Status, nil)
		if has.Status.Phase != l.last.Status.Phase || !equality.Semantic.DeepEqual(&same, &has.Status) {
			l.t.Errorf("%s has %+v, want %+v", l.pod.Name, has.Status, l.last.Status)
		}
	}
}

// forwards checks that no pod's status has ever gone back.
func forwards(t *testing.T, history []*corev1.Pod) {
	t.Helper()
	rank := map[corev1.PodPhase]int{corev1.PodPending: 0, corev1.PodRunning: 1, corev1.PodSucceeded: 2, corev1.PodFailed: 2}
	before := map[types.UID]*corev1.Pod{}
	for _, p := range history {
		old := before[p.UID]
		before[p.UID] = p
		if old == nil {
			continue
		}
		if rank[p.Status.Phase] < rank[old.Status.Phase] || final(old.Status.Phase) && p.Status.Phase != old.Status.Phase {
			t.Errorf("%s went from %s to %s", p.Name, old.Status.Phase, p.Status.Phase)
		}
		if p.Status.QOSClass != old.Status.QOSClass || len(p.Status.ResourceClaimStatuses) > 0 {
			t.Errorf("%s has %+v", p.Name, p.Status)
		}
		for _, c := range old.Status.Conditions {
			now := find(p.Status.Conditions, c.Type)
			if now == nil || now.LastTransitionTime.Before(&c.LastTransitionTime) || c.Type == "gate" && now.Status != corev1.ConditionTrue {
				t.Errorf("%s: condition %+v became %+v", p.Name, c, now)
			}
		}
		if len(old.Status.ContainerStatuses) == 0 {
			continue
		}
		was, now := old.Status.ContainerStatuses[0], p.Status.ContainerStatuses[0]
		if now.RestartCount < was.RestartCount ||
			p.Spec.RestartPolicy == corev1.RestartPolicyNever && was.State.Terminated != nil && now.State.Terminated == nil {
			t.Errorf("%s: container %+v became %+v", p.Name, was, now)
		}
	}
}

// watcher tells a Writer of what the server has, in order and late.
type watcher struct {
	w     *Writer
	queue chan func()
}

func watching(t *testing.T, s *server, w *Writer, l *line) *watcher {
	v := &watcher{w: w, queue: make(chan func(), 10000)}
	s.told = v.tell
	done := make(chan struct{})
	go func() {
		defer close(done)
		for do := range v.queue {
			time.Sleep(time.Duration(max(0, 300-l.n(600))) * time.Millisecond)
			do()
		}
	}()
	t.Cleanup(func() {
		close(v.queue)
		<-done
	})
	return v
}

// listed tells that all was told, and that there are no other static pods.
func (v *watcher) tell(p *corev1.Pod, gone bool) { v.queue <- func() { tell(v.w)(p, gone) } }

// restart has another Writer listen, which is told of all there is.
func (v *watcher) restart(s *server, w *Writer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = v.tell
	v.queue <- func() { v.w = w }
	for _, p := range s.pods {
		v.tell(p, false)
	}
	v.queue <- w.Listed
	v.queue <- w.Settled
}

func (v *watcher) listed() {
	v.queue <- func() {
		v.w.Listed()
		v.w.Settled()
	}
}
