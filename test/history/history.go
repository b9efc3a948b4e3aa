// Package history writes to a control plane that goes away now and then, and asks afterwards whether one order of the
// operations explains all answers, and whether a watch has heard of each write once.
package history

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
)

const (
	// stays is in how many of ten cases a writer goes on with the object that it knows: otherwise most of what it asks
	// for is refused, since the object is another by now.
	stays = 9
	// objects is how many there are for each writer in an era. With fewer, more is refused, and less written.
	objects = 4
	// slot is in what parts time is cut, to know for how long the server has answered.
	slot = 100 * time.Millisecond
)

// Limits are what depends on how fast the machine is.
type Limits struct {
	// Writers is how many write at once, so many that what limits them is the server. They share objects.
	Writers int
	// Answer bounds one request. What has no answer by then may have happened, or may still.
	Answer time.Duration
	// Era is how long the writers do with some objects before they go on to others, so that one object's history stays
	// short enough to be checked.
	Era time.Duration
	// Patience is how long the last that happened may take to be heard of, and all to be checked.
	Patience time.Duration
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

// History is what clients have asked, and were told.
type History struct {
	maps   typed.ConfigMapInterface
	limits Limits
	began  time.Time

	stopWatching       context.CancelFunc
	writing, listening sync.WaitGroup

	mu         sync.Mutex
	over       bool
	operations []porcupine.Operation
	versions   []string // of acknowledged writes
	watched    map[string][]change
	told       []string // versions that the watch has told of, in order
	listed     [][2]int // from which version to which a list has stood for the watch
	odd        []string // versions that are no numbers
}

// Begin has clients write ConfigMaps of a namespace, and one watch them, until the history ends.
func Begin(t *testing.T, client kubernetes.Interface, namespace string, limits Limits) *History {
	t.Helper()
	h := &History{maps: client.CoreV1().ConfigMaps(namespace), limits: limits, began: time.Now(), watched: map[string][]change{}}
	from, err := h.maps.List(t.Context(), metav1.ListOptions{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	h.stopWatching = cancel
	t.Cleanup(cancel)
	h.listening.Go(func() { h.watch(ctx, from.ResourceVersion) })
	for i := range limits.Writers {
		h.writing.Go(func() { h.write(t.Context(), i) })
	}
	return h
}

// End has the writers stop, waits until the watch has heard of all, and checks the history.
func (h *History) End(t *testing.T) {
	t.Helper()
	h.mu.Lock()
	h.over = true
	h.mu.Unlock()
	h.writing.Wait()
	took := time.Since(h.began).Seconds()
	last := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "last", Labels: map[string]string{"last": "yes"}}}
	done, err := h.maps.Create(t.Context(), last, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(h.limits.Patience); ; pause(t.Context(), 20*time.Millisecond) {
		if err = h.heard(done.ResourceVersion); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the watch has not heard of the last write within %s: %v", h.limits.Patience, err)
		}
	}
	h.stopWatching()
	h.listening.Wait()
	h.tell(t, took)
	h.check(t)
}

// tell says how much was written in so many seconds.
func (h *History) tell(t *testing.T, took float64) {
	answered, acknowledged, slots := 0, 0, map[time.Duration]bool{}
	for _, o := range h.operations {
		out := o.Output.(outcome)
		if o.Input.(operation).verb == "get" || out.lost {
			continue
		}
		answered++
		if out.ok {
			acknowledged++
			slots[time.Duration(o.Return)/slot] = true
		}
	}
	up := (time.Duration(max(len(slots), 1)) * slot).Seconds()
	t.Logf("%d operations, %d answered writes, %d acknowledged: %.0f and %.0f a second while it answers, %.0f of %.0f s",
		len(h.operations), answered, acknowledged, float64(answered)/up, float64(acknowledged)/up, up, took)
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (h *History) ended() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.over
}

// write does one request after the other until the writers are told to end.
func (h *History) write(ctx context.Context, client int) {
	var known *corev1.ConfigMap // as last read or written, of this era
	for i := 0; ctx.Err() == nil && !h.ended(); i++ {
		key := h.key(known)
		op := operation{key: key, value: fmt.Sprintf("%d-%d", client, i)}
		call := time.Since(h.began).Nanoseconds()
		limited, cancel := context.WithTimeout(ctx, h.limits.Answer)
		var out outcome
		var got *corev1.ConfigMap
		var err error
		switch n := rand.IntN(10); {
		case known != nil && known.Name == key && n < 8:
			op.verb, op.old = "update", known.Data["v"]
			next := known.DeepCopy()
			next.Data["v"] = op.value
			got, err = h.maps.Update(limited, next, metav1.UpdateOptions{})
			out.ok = err == nil
			err = unless(err, apierrors.IsConflict, apierrors.IsNotFound)
		case n > 8:
			op.verb = "delete"
			err = h.maps.Delete(limited, key, metav1.DeleteOptions{})
			out.ok = err == nil
			err = unless(err, apierrors.IsNotFound)
		case n < 6:
			op.verb = "create"
			o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: key}, Data: map[string]string{"v": op.value}}
			got, err = h.maps.Create(limited, o, metav1.CreateOptions{})
			out.ok = err == nil
			err = unless(err, apierrors.IsAlreadyExists)
		default:
			op.verb = "get"
			got, err = h.maps.Get(limited, key, metav1.GetOptions{})
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
		h.add(client, op, out, known, call)
	}
}

// key is the object of a writer's next request.
func (h *History) key(known *corev1.ConfigMap) string {
	era := fmt.Sprintf("k-%d-", time.Since(h.began)/h.limits.Era)
	if known != nil && strings.HasPrefix(known.Name, era) && rand.IntN(10) < stays {
		return known.Name
	}
	return era + strconv.Itoa(rand.IntN(objects*h.limits.Writers))
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

func (h *History) add(client int, op operation, out outcome, got *corev1.ConfigMap, call int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	end := time.Since(h.began).Nanoseconds()
	if out.lost {
		end = 1 << 62 // at any time from now on
	}
	h.operations = append(h.operations, porcupine.Operation{ClientId: client, Input: op, Output: out, Call: call, Return: end})
	if out.ok && got != nil && op.verb != "get" {
		h.versions = append(h.versions, got.ResourceVersion)
	}
}

// watch hears of all objects, and goes on after the last that it has heard of when it is cut off.
func (h *History) watch(ctx context.Context, from string) {
	for ctx.Err() == nil {
		w, err := h.maps.Watch(ctx, metav1.ListOptions{ResourceVersion: from})
		if err != nil {
			pause(ctx, 20*time.Millisecond)
			continue
		}
		for e := range w.ResultChan() {
			o, ok := e.Object.(*corev1.ConfigMap)
			if !ok {
				if status, is := e.Object.(*metav1.Status); is && status.Code == http.StatusGone {
					// A server that has just begun has no memory of what was before: clients list, and go on.
					from = h.list(ctx, from)
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
func (h *History) list(ctx context.Context, from string) string {
	all, err := h.maps.List(ctx, metav1.ListOptions{})
	if err != nil {
		return from
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.listed = append(h.listed, [2]int{h.number(from), h.number(all.ResourceVersion)})
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

// number is a version's, which Kubernetes promises to be one; h.mu is held.
func (h *History) number(version string) int {
	n, err := strconv.Atoi(version)
	if err != nil {
		h.odd = append(h.odd, version)
	}
	return n
}

// heard fails while neither the watch has told of a version nor a list that stood for it can have.
func (h *History) heard(version string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.told); n > 0 && h.told[n-1] == version {
		return nil
	}
	if n := len(h.listed); n > 0 && h.listed[n-1][1] >= h.number(version) {
		return nil
	}
	return fmt.Errorf("it has heard of %d changes", len(h.told))
}
