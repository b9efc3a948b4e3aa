package owned

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

var at = time.Unix(1_700_000_000, 0)

// ready is a pod on a node, made and ready some time ago.
func ready(name, node string, ago time.Duration) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "n", UID: types.UID(name), CreationTimestamp: metav1.NewTime(at.Add(-ago))},
		Spec:       corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{
			Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(at.Add(-ago)),
		}}},
	}
}

func with(p *corev1.Pod, f func(*corev1.Pod)) *corev1.Pod { f(p); return p }

// TestRank has each rule decide, in their order.
func TestRank(t *testing.T) {
	pods := []*corev1.Pod{
		ready("old", "a", 100*time.Hour),
		ready("new", "a", time.Hour),
		with(ready("restarted", "a", time.Hour), func(p *corev1.Pod) { p.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: 2}} }),
		with(ready("cheap", "a", time.Hour), func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.PodDeletionCost: "-1"} }),
		with(ready("dear", "a", time.Hour), func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.PodDeletionCost: "7"} }),
		ready("crowded", "b", 200*time.Hour),
		with(ready("unready", "a", time.Hour), func(p *corev1.Pod) { p.Status.Conditions = nil }),
		with(ready("pending", "a", time.Hour), func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }),
		with(ready("unbound", "", time.Hour), func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }),
		with(ready("no number", "a", 100*time.Hour), func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.PodDeletionCost: "+9"} }),
	}
	var related []*corev1.Pod
	for range 20 {
		related = append(related, ready("", "b", 0))
	}
	Rank(pods, append(related, pods...), at)
	var got []string
	for _, p := range pods {
		got = append(got, p.Name)
	}
	if want := "unbound pending unready cheap crowded restarted new no number old dear"; strings.Join(got, " ") != want {
		t.Errorf("they go as %v, not %s", got, want)
	}
}

func TestAvailable(t *testing.T) {
	p := ready("p", "a", 10*time.Second)
	for seconds, want := range map[int32]time.Duration{0: 0, 10: 0, 15: 5 * time.Second} {
		is, left := Available(p, seconds, at)
		if left != want || is != (want == 0) {
			t.Errorf("after %d seconds it is %v, and takes %s", seconds, is, left)
		}
	}
	p.Status.Conditions = nil
	if is, left := Available(p, 0, at); is || left != 0 {
		t.Error("what is not ready is available")
	}
}

// TestBatches stops at a failure, before the larger ones.
func TestBatches(t *testing.T) {
	var asked atomic.Int32
	done, err := Batches(100, func(i int) error {
		asked.Add(1)
		if i >= 5 {
			return fmt.Errorf("%d fails", i)
		}
		return nil
	})
	if done != 5 || err == nil || asked.Load() != 7 {
		t.Errorf("%d are done of %d, %v", done, asked.Load(), err)
	}
	if done, err := Batches(100, func(int) error { return nil }); done != 100 || err != nil {
		t.Errorf("%d are done, %v", done, err)
	}
}

// store is a cache of pods at a version.
type store struct {
	pods    map[string]*corev1.Pod
	version string
}

// GetByKey implements [Cache].
func (s store) GetByKey(key string) (any, bool, error) { p, has := s.pods[key]; return p, has, nil }

// LastStoreSyncResourceVersion implements [Cache].
func (s store) LastStoreSyncResourceVersion() string { return s.version }

// TestWrites has a cache be behind until it has heard of what was made and of what was ended.
func TestWrites(t *testing.T) {
	p := ready("p", "a", 0)
	s := &store{pods: map[string]*corev1.Pod{"n/p": p}, version: "99"}
	w, key := NewWrites(s), cache.ObjectName{Namespace: "n", Name: "o"}
	behind := func(want bool) {
		t.Helper()
		if w.Behind(key) != want {
			t.Errorf("it is %v", !want)
		}
	}
	behind(false)
	at := func(version string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: version}}
	}
	w.Wrote(key, at("101"))
	w.Wrote(key, at("100"))
	behind(true)
	s.version = "100"
	behind(true)
	s.version = "101"
	behind(false)
	w.Wrote(key, at("7"))
	behind(false)
	w.Ended(key, p)
	behind(true)
	p.DeletionTimestamp = &metav1.Time{}
	behind(false)
	w.Ended(key, ready("gone", "a", 0))
	behind(false)
	// Another pod of the name is not the one that was to go.
	w.Ended(key, ready("p", "a", 0))
	s.pods["n/p"] = with(ready("p", "a", 0), func(p *corev1.Pod) { p.UID = "other" })
	behind(false)
	w.Wrote(key, at("200"))
	w.Forget(key)
	behind(false)
	if len(w.of) > 0 {
		t.Errorf("it remembers %v", w.of)
	}
}

// TestClaim adopts what is nobody's and matches, releases what does not match, and asks the API before the first.
func TestClaim(t *testing.T) {
	owner := &corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "o", UID: "1"}}
	labelled := func(name, app string) *corev1.Pod {
		return with(ready(name, "a", 0), func(p *corev1.Pod) { p.Labels = map[string]string{"app": app} })
	}
	patched := map[string]string{}
	fresh := owner
	claim := Claim[*corev1.Pod]{
		Owner: owner, Kind: corev1.SchemeGroupVersion.WithKind("ReplicationController"), Selector: labels.SelectorFromSet(labels.Set{"app": "mine"}),
		Fresh: func(context.Context) (metav1.Object, error) { return fresh, nil },
		Patch: func(_ context.Context, p *corev1.Pod, patch []byte) (*corev1.Pod, error) {
			patched[p.Name] = string(patch)
			return p, nil
		},
	}
	own := []*corev1.Pod{labelled("kept", "mine"), labelled("released", "other")}
	orphans := []*corev1.Pod{
		labelled("adopted", "mine"), labelled("foreign", "other"),
		with(labelled("ending", "mine"), func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }),
	}
	names := func(pods []*corev1.Pod) (all []string) {
		for _, p := range pods {
			all = append(all, p.Name)
		}
		return all
	}
	got, err := claim.Of(t.Context(), own, orphans)
	if err != nil || !slices.Equal(names(got), []string{"kept", "adopted"}) {
		t.Errorf("its are %v, %v", names(got), err)
	}
	if len(patched) != 2 || !strings.Contains(patched["adopted"], `"controller":true`) || !strings.Contains(patched["released"], `"$patch":"delete"`) {
		t.Errorf("patched are %v", patched)
	}
	// Another owner of the name is not asked for: it adopts by itself.
	fresh = &corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{UID: "2"}}
	clear(patched)
	if got, err := claim.Of(t.Context(), own[:1], orphans); err == nil || len(got) != 1 || len(patched) > 0 {
		t.Errorf("its are %v, %v, patched %v", names(got), err, patched)
	}
	owner.DeletionTimestamp = &metav1.Time{}
	if got, err := claim.Of(t.Context(), own, orphans); err != nil || len(got) != 1 || len(patched) > 0 {
		t.Errorf("of one that ends they are %v, %v, patched %v", names(got), err, patched)
	}
	owner.DeletionTimestamp = nil
	claim.Fresh = func(context.Context) (metav1.Object, error) { return nil, errors.New("not now") }
	if _, err := claim.Of(t.Context(), nil, orphans); err == nil {
		t.Error("it adopts without an answer")
	}
}

func TestPace(t *testing.T) {
	var p Pace
	key := cache.ObjectName{Name: "o"}
	if p.Left(key, at) != 0 || p.Left(key, at.Add(between/2)) != between/2 || p.Left(key, at.Add(between)) != 0 {
		t.Error("it is another pace")
	}
	// A clock that is set back does not hold up anything.
	if p.Left(key, at.Add(-time.Hour)) != 0 {
		t.Error("it waits for the clock")
	}
	p.Forget(key)
	if len(p.last) != 0 {
		t.Error("it remembers")
	}
}

// TestRest has objects of more and more pods be looked at again and again.
func TestRest(t *testing.T) {
	for pods, want := range map[int]time.Duration{0: 0, manyPods - 1: 0, manyPods: manyPods * restPerPod, 3000: 300 * time.Millisecond} {
		var p Pace
		key := cache.ObjectName{Name: "o"}
		if first, second := p.Rest(key, at, pods), p.Rest(key, at, pods); first != 0 || second != want {
			t.Errorf("%d pods: looks wait %v and %v, want 0 and %v", pods, first, second, want)
		}
		if left := p.Rest(key, at.Add(want), pods); left != 0 {
			t.Errorf("%d pods: %v later a look waits %v", pods, want, left)
		}
	}
}

// TestEach does a thousand things that take until they are told to end: as many are begun as may be under way.
func TestEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const things = 1000
		began, end, done := make(chan int, things), make(chan struct{}), make(chan []error)
		go func() {
			done <- Each(things, func(i int) error {
				began <- i
				<-end
				if i%100 == 7 {
					panic(i)
				}
				return nil
			})
		}()
		for range atOnce {
			<-began
		}
		for i := range things {
			select {
			case <-began:
				t.Errorf("after %d ends one more is begun than may be", i)
			default:
			}
			end <- struct{}{}
			if i < things-atOnce {
				<-began
			}
		}
		for i, err := range <-done {
			if (err != nil) != (i%100 == 7) {
				t.Errorf("thing %d ends with %v", i, err)
			}
		}
	})
}
