package control

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	writers = 12
	// keysAtOnce is how many objects the writers contend for; era is how long they do before they go on to others, so
	// that one object's history stays short enough to be checked.
	keysAtOnce = 6
	era        = 2 * time.Second
	// answerLimit bounds one request. What has no answer by then may have happened, or may still.
	answerLimit = 5 * time.Second
)

// TestKills kills the control plane at random moments under writes, and asks then of the history of each object whether
// one order of its operations explains all answers, and of a watch that goes on where it was cut off whether it has
// heard of each write once. BERTH_CONTROL_KILLS is how often.
func TestKills(t *testing.T) {
	t.Parallel()
	kills := 5
	if text := os.Getenv("BERTH_CONTROL_KILLS"); text != "" {
		var err error
		if kills, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	p := startAt(t, dir, "0")
	port := p.port(t)
	h := &history{watched: map[string][]change{}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	from, err := p.client.CoreV1().ConfigMaps(ns).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	watching, stopWatching := context.WithCancel(ctx)
	var writing, listening sync.WaitGroup
	listening.Go(func() { h.watch(watching, t, p, from.ResourceVersion) })
	began := time.Now()
	for i := range writers {
		writing.Go(func() { h.write(ctx, p, i, began) })
	}
	for range kills {
		pause(ctx, time.Duration(rand.IntN(1500))*time.Millisecond)
		p.kill()
		next := startAt(t, dir, port)
		p.cmd, p.ended = next.cmd, next.ended
	}
	pause(ctx, time.Second)
	stopWriters(&writing, h)
	last := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "last", Labels: map[string]string{"last": "yes"}}}
	done, err := p.client.CoreV1().ConfigMaps(ns).Create(ctx, last, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the watch has heard of the last write", func() error { return h.heard(t, done.ResourceVersion) })
	stopWatching()
	listening.Wait()
	t.Logf("%d operations, %d kills, %.0f writes a second", h.count(), kills, float64(h.written())/time.Since(began).Seconds())
	h.check(t)
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func stopWriters(w *sync.WaitGroup, h *history) {
	h.mu.Lock()
	h.over = true
	h.mu.Unlock()
	w.Wait()
}

// operation is one request for an object. Old and value are what the object holds before and after; every value is
// written once, so that a value stands for a version.
type operation struct {
	verb       string
	key        string
	old, value string
}

// outcome is what the server has answered.
type outcome struct {
	ok    bool
	value string // that was read
	lost  bool   // nobody knows whether it happened
}

// change is what a watch has told of.
type change struct {
	kind    watch.EventType
	value   string
	version string
}

type history struct {
	mu         sync.Mutex
	over       bool
	operations []porcupine.Operation
	versions   []string // of acknowledged writes
	watched    map[string][]change
	told       []string // versions that the watch has told of, in order
	listed     [][2]int // from which version to which a list has stood for the watch
}

func (h *history) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.operations)
}

func (h *history) written() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.versions)
}

func (h *history) ended() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.over
}

// write does one request after the other until the writers are told to end.
func (h *history) write(ctx context.Context, p *plane, client int, began time.Time) {
	maps := p.client.CoreV1().ConfigMaps(ns)
	var known *corev1.ConfigMap // as last read or written, of this era
	for i := 0; !h.ended(); i++ {
		key := fmt.Sprintf("k-%d-%d", time.Since(began)/era, rand.IntN(keysAtOnce))
		op := operation{key: key, value: fmt.Sprintf("%d-%d", client, i)}
		call := time.Since(began).Nanoseconds()
		limited, cancel := context.WithTimeout(ctx, answerLimit)
		var out outcome
		var got *corev1.ConfigMap
		var err error
		switch n := rand.IntN(10); {
		case known != nil && known.Name == key && n < 5:
			op.verb, op.old = "update", known.Data["v"]
			next := known.DeepCopy()
			next.Data["v"] = op.value
			got, err = maps.Update(limited, next, metav1.UpdateOptions{})
			out.ok = err == nil
			err = unless(err, apierrors.IsConflict, apierrors.IsNotFound)
		case n < 2:
			op.verb = "delete"
			err = maps.Delete(limited, key, metav1.DeleteOptions{})
			out.ok = err == nil
			err = unless(err, apierrors.IsNotFound)
		case n < 6:
			op.verb = "create"
			o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: key}, Data: map[string]string{"v": op.value}}
			got, err = maps.Create(limited, o, metav1.CreateOptions{})
			out.ok = err == nil
			err = unless(err, apierrors.IsAlreadyExists)
		default:
			op.verb = "get"
			got, err = maps.Get(limited, key, metav1.GetOptions{})
			if out.ok = err == nil; out.ok {
				out.value = got.Data["v"]
			}
			err = unless(err, apierrors.IsNotFound)
		}
		cancel()
		known = nil
		if out.ok && got != nil {
			known = got
		}
		if out.lost = err != nil; out.lost {
			pause(ctx, 20*time.Millisecond) // it may be away
			if op.verb == "get" {
				continue
			}
		}
		h.add(client, op, out, known, call, began)
	}
}

// unless has errors pass but those that are answers.
func unless(err error, answers ...func(error) bool) error {
	for _, is := range answers {
		if is(err) {
			return nil
		}
	}
	return err
}

func (h *history) add(client int, op operation, out outcome, got *corev1.ConfigMap, call int64, began time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	end := time.Since(began).Nanoseconds()
	if out.lost {
		end = 1 << 62 // at any time from now on
	}
	h.operations = append(h.operations, porcupine.Operation{ClientId: client, Input: op, Output: out, Call: call, Return: end})
	if out.ok && got != nil && op.verb != "get" {
		h.versions = append(h.versions, got.ResourceVersion)
	}
}

// watch hears of all objects, and goes on after the last that it has heard of when it is cut off.
func (h *history) watch(ctx context.Context, t *testing.T, p *plane, from string) {
	for ctx.Err() == nil {
		w, err := p.client.CoreV1().ConfigMaps(ns).Watch(ctx, metav1.ListOptions{ResourceVersion: from})
		if err != nil {
			pause(ctx, 20*time.Millisecond)
			continue
		}
		for e := range w.ResultChan() {
			o, ok := e.Object.(*corev1.ConfigMap)
			if !ok {
				if status, is := e.Object.(*metav1.Status); is && status.Code == http.StatusGone {
					// A server that has just begun has no memory of what was before: clients list, and go on.
					from = h.list(ctx, t, p, from)
				}
				break // it is cut off
			}
			from = o.ResourceVersion
			h.mu.Lock()
			h.told = append(h.told, from)
			h.watched[o.Name] = append(h.watched[o.Name], change{e.Type, o.Data["v"], from})
			h.mu.Unlock()
		}
		w.Stop()
	}
}

// list is what the watch goes on from whose version is too old.
func (h *history) list(ctx context.Context, t *testing.T, p *plane, from string) string {
	all, err := p.client.CoreV1().ConfigMaps(ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		return from
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.listed = append(h.listed, [2]int{number(t, from), number(t, all.ResourceVersion)})
	there := map[string]*corev1.ConfigMap{}
	for i := range all.Items {
		there[all.Items[i].Name] = &all.Items[i]
		if h.watched[all.Items[i].Name] == nil {
			h.watched[all.Items[i].Name] = []change{}
		}
	}
	for name := range h.watched {
		c := change{kind: watch.Bookmark}
		if o := there[name]; o != nil {
			c.version = o.ResourceVersion
		}
		h.watched[name] = append(h.watched[name], c)
	}
	return all.ResourceVersion
}

func number(t *testing.T, version string) int {
	n, err := strconv.Atoi(version)
	if err != nil {
		t.Errorf("a version is no number: %v", err)
	}
	return n
}

// heard fails while neither the watch has told of a version nor a list that stood for it can have.
func (h *history) heard(t *testing.T, version string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.told); n > 0 && h.told[n-1] == version {
		return nil
	}
	if n := len(h.listed); n > 0 && h.listed[n-1][1] >= number(t, version) {
		return nil
	}
	return fmt.Errorf("it has heard of %d changes", len(h.told))
}

// objectModel is the model of one object: it is not there, or holds a value.
func objectModel() porcupine.Model {
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{""} },
		Step: func(state, input, output any) []any {
			is, op, out := state.(string), input.(operation), output.(outcome)
			var after any
			may := false // whether it would be done in this state
			switch op.verb {
			case "get":
				if out.ok && is == out.value || !out.ok && is == "" {
					return []any{is}
				}
				return nil
			case "create":
				may, after = is == "", op.value
			case "update":
				may, after = is == op.old, op.value
			case "delete":
				may, after = is != "", ""
			}
			switch {
			case out.lost && may:
				return []any{is, after}
			case out.lost || may != out.ok:
				if out.lost {
					return []any{is}
				}
				return nil
			case out.ok:
				return []any{after}
			}
			return []any{is}
		},
		Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
			by := map[string][]porcupine.Operation{}
			for _, o := range all {
				key := o.Input.(operation).key
				by[key] = append(by[key], o)
			}
			var out [][]porcupine.Operation
			for _, o := range by {
				out = append(out, o)
			}
			return out
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v: %+v", input, output) },
	}
	return model.ToModel()
}

func (h *history) check(t *testing.T) {
	t.Helper()
	if got := porcupine.CheckOperationsTimeout(objectModel(), h.operations, patience); got != porcupine.Ok {
		t.Errorf("no order of the operations explains the answers: %s", got)
	}
	told := map[string]bool{}
	before := 0
	for _, v := range h.told {
		if n := number(t, v); n <= before {
			t.Errorf("the watch tells of %s after %d", v, before)
		}
		before, told[v] = number(t, v), true
	}
	for _, v := range h.versions {
		n := number(t, v)
		if !told[v] && !slices.ContainsFunc(h.listed, func(l [2]int) bool { return l[0] < n && n <= l[1] }) {
			t.Errorf("the watch has not heard of the write of version %s", v)
		}
	}
	for name, changes := range h.watched {
		there := false
		for _, c := range changes {
			if c.kind == watch.Bookmark { // a list has told of it
				there = c.version != ""
				continue
			}
			if (c.kind == watch.Added) == there {
				t.Errorf("%s: the watch tells of %+v, of an object that is there: %t", name, c, there)
			}
			there = c.kind != watch.Deleted
		}
	}
}
