package follow

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// script answers one question after another as a test says.
type script struct {
	watches []func(metav1.ListOptions) (watch.Interface, error)
	pages   [][]string // names
	asked   []metav1.ListOptions
	end     context.CancelFunc
}

func (s *script) Watch(_ context.Context, _ schema.GroupVersionResource, _ string, opts metav1.ListOptions) (watch.Interface, error) {
	s.asked = append(s.asked, opts)
	if len(s.watches) == 0 {
		s.end()
		return nil, errors.New("over")
	}
	next := s.watches[0]
	s.watches = s.watches[1:]
	return next(opts)
}

func (s *script) List(_ context.Context, _ schema.GroupVersionResource, _ string, opts metav1.ListOptions, into runtime.Object) error {
	s.asked = append(s.asked, opts)
	list := into.(*corev1.ConfigMapList)
	at := 0
	_, _ = fmt.Sscan(opts.Continue, &at)
	for _, name := range s.pages[at] {
		list.Items = append(list.Items, *named(name, "1"))
	}
	list.ResourceVersion = "50"
	if at++; at < len(s.pages) {
		list.Continue = fmt.Sprint(at)
	}
	return nil
}

// heard is what a sink was told.
type heard struct{ log []string }

func (h *heard) All(objects []Object) {
	h.log = append(h.log, fmt.Sprintf("all %d", len(objects)))
}

func (h *heard) Changed(o Object) { h.log = append(h.log, "+"+o.GetName()+" "+o.GetResourceVersion()) }
func (h *heard) Removed(o Object) { h.log = append(h.log, "-"+o.GetName()) }
func (h *heard) Failed(err error) { h.log = append(h.log, fmt.Sprint("failed ", err)) }
func (h *heard) Back(from, to string) {
	h.log = append(h.log, "back from "+from+" to "+to)
}

func named(name, version string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: name, ResourceVersion: version, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
	}}
}

// tells answers with these events, and ends.
func tells(events ...watch.Event) func(metav1.ListOptions) (watch.Interface, error) {
	return func(metav1.ListOptions) (watch.Interface, error) {
		w := watch.NewFakeWithChanSize(len(events), false)
		for _, e := range events {
			w.Action(e.Type, e.Object)
		}
		w.Stop()
		return w, nil
	}
}

func fails(err error) func(metav1.ListOptions) (watch.Interface, error) {
	return func(metav1.ListOptions) (watch.Interface, error) { return nil, err }
}

func added(name, version string) watch.Event {
	return watch.Event{Type: watch.Added, Object: named(name, version)}
}

func removed(name, version string) watch.Event {
	return watch.Event{Type: watch.Deleted, Object: named(name, version)}
}

func end(version string) watch.Event {
	o := named("", version)
	o.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	return watch.Event{Type: watch.Bookmark, Object: o}
}

func mark(version string) watch.Event {
	return watch.Event{Type: watch.Bookmark, Object: named("", version)}
}

func ahead() error {
	err := apierrors.NewTimeoutError("too large resource version", 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
	return err
}

func gone() watch.Event {
	status := apierrors.NewResourceExpired("too old").Status()
	return watch.Event{Type: watch.Error, Object: &status}
}

func TestFollower(t *testing.T) {
	type answers = []func(metav1.ListOptions) (watch.Interface, error)
	for name, c := range map[string]struct {
		watches answers
		pages   [][]string
		target  Target
		want    []string
		from    []string // versions that were asked for; "all" of what there is
	}{
		"what there is, and what changes": {
			watches: answers{tells(added("a", "3"), end("5"), added("b", "6"), removed("a", "7")), tells(added("c", "9"))},
			want:    []string{"all 1", "+b 6", "-a", "+c 9"}, from: []string{"all", "7", "9"},
		},
		"a version that the server has not come to": {
			watches: answers{tells(end("5"), mark("99")), fails(ahead()), tells(added("a", "6"), end("7"))},
			want:    []string{"all 0", "back from 99 to 7", "all 1"}, from: []string{"all", "99", "all", "7"},
		},
		"repeated events": {
			watches: answers{tells(end("5"), added("b", "6"), added("b", "6"), removed("b", "7"), added("b", "6"))},
			want:    []string{"all 0", "+b 6", "-b"}, from: []string{"all", "7"},
		},
		"gone before all was told": {
			watches: answers{tells(added("a", "3"), removed("a", "4"), end("5"))},
			want:    []string{"all 0"}, from: []string{"all", "5"},
		},
		"bookmarks go on": {
			watches: answers{tells(end("5"), mark("90"))}, want: []string{"all 0"}, from: []string{"all", "90"},
		},
		"a compacted history": {
			watches: answers{tells(end("5")), tells(gone()), tells(added("a", "8"), end("9"))},
			want:    []string{"all 0", "all 1"}, from: []string{"all", "5", "all", "9"},
		},
		"an older history": {
			watches: answers{tells(end("50")), tells(mark("7")), tells(end("8"))},
			want:    []string{"all 0", "back from 50 to 8", "all 0"}, from: []string{"all", "50", "all", "8"},
		},
		"cut before the end": {
			watches: answers{tells(added("a", "3")), tells(end("5"))}, want: []string{"all 0"}, from: []string{"all", "all", "5"},
		},
		"no stream": {
			watches: answers{fails(apierrors.NewInvalid(schema.GroupKind{}, "", nil)), tells(added("x", "51"))},
			pages:   [][]string{{"a", "b"}, {"c"}},
			want:    []string{"all 3", "+x 51"}, from: []string{"all", "", "", "50", "51"},
		},
		"away, and sure": {
			watches: answers{tells(end("5")), fails(errors.New("refused")), tells(end("6"))}, target: Target{Sure: true},
			want: []string{"all 0", "failed refused", "failed <nil>", "all 0"}, from: []string{"all", "5", "all", "6"},
		},
		"away, and not": {
			watches: answers{tells(end("5")), fails(errors.New("refused")), tells(added("a", "6"))},
			want:    []string{"all 0", "failed refused", "failed <nil>", "+a 6"}, from: []string{"all", "5", "5", "6"},
		},
		"early": {
			watches: answers{tells(added("a", "3"), end("5"))}, target: Target{Early: true},
			want: []string{"+a 3", "all 1"}, from: []string{"all 0", "5"},
		},
		"too many": {
			watches: answers{tells(added("a", "3"), added("b", "3"), end("5"))}, target: Target{Max: 1},
			want: []string{"failed read configmaps: the server has more than 1 of them"}, from: []string{"all", "all"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			s, h := &script{watches: c.watches, pages: c.pages, end: cancel}, &heard{}
			c.target.Resource = corev1.SchemeGroupVersion.WithResource("configmaps")
			c.target.List = func() List { return new(corev1.ConfigMapList) }
			if c.target.Max == 0 {
				c.target.Max = 100
			}
			New(Config{Client: s, Target: c.target, Sink: h, Pace: Pace{First: time.Microsecond, Most: time.Microsecond}}).Run(ctx)
			var from []string
			for _, o := range s.asked {
				if o.SendInitialEvents != nil {
					from = append(from, map[string]string{"": "all", "0": "all 0"}[o.ResourceVersion])
				} else {
					from = append(from, o.ResourceVersion)
				}
			}
			if fmt.Sprint(h.log) != fmt.Sprint(c.want) || fmt.Sprint(from) != fmt.Sprint(c.from) {
				t.Errorf("told %q, want %q; asked from %q, want %q", h.log, c.want, from, c.from)
			}
		})
	}
}

// TestAskedToHurry: a server that asks for another try in less than no time is not asked without end.
func TestAskedToHurry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &script{end: cancel}
		const tries = 20
		for range tries {
			s.watches = append(s.watches, fails(apierrors.NewServerTimeout(schema.GroupResource{}, "watch", math.MinInt32)))
		}
		target := Target{Resource: corev1.SchemeGroupVersion.WithResource("configmaps"), Max: 1}
		began := time.Now()
		New(Config{Client: s, Target: target, Sink: &heard{}, Pace: Pace{First: time.Second, Most: time.Second}}).Run(ctx)
		if took := time.Since(began); took < (tries-1)*time.Second/2 {
			t.Errorf("it was asked %d times in %s", tries, took)
		}
	})
}

// TestNeverAll: a server that goes on and on, and never says that this was all there is, is asked for a list.
func TestNeverAll(t *testing.T) {
	for name, event := range map[string]watch.Event{
		"bookmarks": mark("5"), "one object": added("a", "3"),
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			var wait sync.WaitGroup
			defer wait.Wait()
			s, h := &script{end: cancel, pages: [][]string{{"a"}}}, &heard{}
			s.watches = append(s.watches, func(metav1.ListOptions) (watch.Interface, error) {
				out := make(chan watch.Event)
				w := watch.NewProxyWatcher(out)
				wait.Go(func() {
					defer close(out)
					for range 1000 {
						select {
						case <-w.StopChan():
							return
						case <-time.After(10 * time.Second):
						}
						select {
						case <-w.StopChan():
							return
						case out <- watch.Event{Type: event.Type, Object: event.Object.DeepCopyObject()}:
						}
					}
				})
				return w, nil
			}, tells(added("b", "51")))
			target := Target{Resource: corev1.SchemeGroupVersion.WithResource("configmaps"), Max: 10, List: func() List { return new(corev1.ConfigMapList) }}
			began := time.Now()
			New(Config{Client: s, Target: target, Sink: h}).Run(ctx)
			if len(h.log) < 3 || h.log[2] != "all 1" || time.Since(began) > 2*time.Minute {
				t.Errorf("%s: after %s: %q", name, time.Since(began), h.log)
			}
		})
	}
}

// TestEndlessList: pages that go on and on with nothing in them end, and that is tried again like any failure.
func TestEndlessList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &script{end: cancel, pages: make([][]string, 5000)}
		s.watches = append(s.watches, fails(apierrors.NewBadRequest("sendInitialEvents")))
		target := Target{Resource: corev1.SchemeGroupVersion.WithResource("configmaps"), Max: 1, List: func() List { return new(corev1.ConfigMapList) }}
		h := &heard{}
		time.AfterFunc(time.Millisecond, cancel)
		New(Config{Client: s, Target: target, Sink: h, Pace: Pace{First: time.Second, Most: time.Second}}).Run(ctx)
		if len(s.asked) > 200 || fmt.Sprint(h.log) != "[failed read configmaps: the list of the server has no end]" {
			t.Errorf("it was asked %d times, and said %q", len(s.asked), h.log)
		}
	})
}
