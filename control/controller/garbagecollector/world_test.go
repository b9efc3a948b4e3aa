package garbagecollector

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"unique"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

var (
	wide    = unique.Make(schema.GroupKind{Group: "g", Kind: "Wide"})
	sorts   = []unique.Handle[schema.GroupKind]{wide, unique.Make(schema.GroupKind{Kind: "A"}), unique.Make(schema.GroupKind{Group: "g", Kind: "B"})}
	errDead = errors.New("the process was killed")
)

const foreign = "example.com/keep"

// world is the API of a history: the truth, and what of it the watches have still to tell.
type world struct {
	r       *rand.Rand
	version uint64
	objects map[types.UID]*metav1.PartialObjectMetadata
	kinds   map[types.UID]unique.Handle[schema.GroupKind]
	places  map[place]types.UID
	ever    []thing
	pending map[unique.Handle[schema.GroupKind]][]told
	// lives is how many calls the process has until it is killed; negative: it is not.
	lives int
	busy  bool // others write between the calls of the collector
	heard map[types.UID]uint64
	wrong []string
}

type told struct {
	gone bool
	o    object
}

func newWorld(r *rand.Rand) *world {
	return &world{
		r: r, objects: map[types.UID]*metav1.PartialObjectMetadata{}, kinds: map[types.UID]unique.Handle[schema.GroupKind]{},
		places: map[place]types.UID{}, pending: map[unique.Handle[schema.GroupKind]][]told{}, lives: -1, heard: map[types.UID]uint64{},
	}
}

func (w *world) violation(format string, args ...any) {
	w.wrong = append(w.wrong, fmt.Sprintf(format, args...))
}

func (w *world) wrote(m *metav1.PartialObjectMetadata) {
	w.version++
	m.ResourceVersion = strconv.FormatUint(w.version, 10)
	kind := w.kinds[m.UID]
	if m.DeletionTimestamp != nil && len(m.Finalizers) == 0 {
		delete(w.objects, m.UID)
		delete(w.places, w.placeOf(m))
		w.pending[kind] = append(w.pending[kind], told{true, objectOf(kind, m)})
		return
	}
	w.pending[kind] = append(w.pending[kind], told{false, objectOf(kind, m)})
}

func (w *world) placeOf(m *metav1.PartialObjectMetadata) place {
	return place{w.kinds[m.UID], unique.Make(m.Namespace), m.Name}
}

// create makes an object that refers to some that are, were, or never were.
func (w *world) create() {
	kind := sorts[w.r.IntN(len(sorts))]
	m := &metav1.PartialObjectMetadata{}
	m.Name, m.UID = strconv.Itoa(w.r.IntN(12)), types.UID(fmt.Sprintf("u%d", len(w.ever)))
	if kind != wide {
		m.Namespace = []string{"x", "y"}[w.r.IntN(2)]
	}
	p := place{kind, unique.Make(m.Namespace), m.Name}
	if _, is := w.places[p]; is {
		return
	}
	for range w.r.IntN(3) {
		w.refer(m)
	}
	if w.r.IntN(10) == 0 {
		m.Finalizers = []string{foreign}
	}
	w.objects[m.UID], w.kinds[m.UID], w.places[p] = m, kind, m.UID
	w.ever = append(w.ever, thing{p, m.UID})
	w.wrote(m)
}

func (w *world) refer(m *metav1.PartialObjectMetadata) {
	if len(w.ever) == 0 {
		return
	}
	t := w.ever[max(0, len(w.ever)-1-w.r.IntN(10))]
	if t.namespace != none && t.namespace.Value() != m.Namespace && w.r.IntN(8) > 0 {
		return
	}
	blocks := w.r.IntN(2) == 0
	r := metav1.OwnerReference{APIVersion: "v1", Kind: t.kind.Value().Kind, Name: t.name, UID: t.uid, BlockOwnerDeletion: &blocks}
	if g := t.kind.Value().Group; g != "" {
		r.APIVersion = g + "/v1"
	}
	switch w.r.IntN(25) {
	case 0:
		r.Name = "other"
	case 1:
		r.UID = types.UID(fmt.Sprintf("never%d", w.r.IntN(5)))
	}
	if !slices.ContainsFunc(m.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == r.UID }) {
		m.OwnerReferences = append(m.OwnerReferences, r)
	}
}

func (w *world) any() *metav1.PartialObjectMetadata {
	if len(w.ever) == 0 {
		return nil
	}
	return w.objects[w.ever[w.r.IntN(len(w.ever))].uid]
}

// act is one write of somebody else.
func (w *world) act() {
	m := w.any()
	switch n := w.r.IntN(10); {
	case n < 5 || m == nil:
		w.create()
	case n < 8 && m.DeletionTimestamp == nil:
		w.end(m, []metav1.DeletionPropagation{
			metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan,
		}[w.r.IntN(3)])
	case n == 8 && slices.Contains(m.Finalizers, foreign):
		m.Finalizers = slices.DeleteFunc(slices.Clone(m.Finalizers), func(f string) bool { return f == foreign })
		w.wrote(m)
	case n == 9 && m.DeletionTimestamp == nil:
		if w.r.IntN(2) == 0 && len(m.OwnerReferences) > 0 {
			m.OwnerReferences = slices.Clone(m.OwnerReferences[1:])
		} else {
			m.OwnerReferences = slices.Clone(m.OwnerReferences)
			w.refer(m)
		}
		w.wrote(m)
	}
}

// end is the deletion of an object as the API does it.
func (w *world) end(m *metav1.PartialObjectMetadata, policy metav1.DeletionPropagation) {
	m.Finalizers = slices.DeleteFunc(slices.Clone(m.Finalizers), func(f string) bool {
		return f == metav1.FinalizerDeleteDependents || f == metav1.FinalizerOrphanDependents
	})
	switch policy {
	case metav1.DeletePropagationForeground:
		m.Finalizers = append(m.Finalizers, metav1.FinalizerDeleteDependents)
	case metav1.DeletePropagationOrphan:
		m.Finalizers = append(m.Finalizers, metav1.FinalizerOrphanDependents)
	}
	now := metav1.Now()
	m.DeletionTimestamp = &now
	w.wrote(m)
}

// call is before each call of the collector: others write, and the process may be killed.
func (w *world) call() error {
	if w.busy && w.r.IntN(8) == 0 {
		w.act()
	}
	if w.lives == 0 {
		return errDead
	}
	if w.lives > 0 {
		w.lives--
	}
	return nil
}

func (w *world) kind(k schema.GroupKind) (namespaced, served bool) {
	return k != wide.Value(), slices.Contains(sorts, unique.Make(k))
}

func (w *world) complete() bool                      { return true }
func (w *world) refuse(thing, metav1.OwnerReference) {}

func (w *world) get(_ context.Context, p place) (*metav1.PartialObjectMetadata, error) {
	if err := w.call(); err != nil {
		return nil, err
	}
	m := w.objects[w.places[p]]
	if m == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{}, p.name)
	}
	return m.DeepCopy(), nil
}

func (w *world) exact(t thing, version any) (*metav1.PartialObjectMetadata, error) {
	if err := w.call(); err != nil {
		return nil, err
	}
	m := w.objects[w.places[t.place]]
	if m == nil {
		return nil, nil
	}
	if m.UID != t.uid || m.ResourceVersion != version {
		return nil, apierrors.NewConflict(schema.GroupResource{}, t.name, errors.New("changed"))
	}
	return m, nil
}

func (w *world) patch(_ context.Context, t thing, change map[string]any) error {
	m, err := w.exact(t, change["resourceVersion"])
	if m == nil {
		return err
	}
	if refs, is := change["ownerReferences"].([]metav1.OwnerReference); is {
		w.forget(m, refs)
		m.OwnerReferences = slices.Clone(refs)
	}
	if f, is := change["finalizers"].([]string); is {
		if slices.Contains(m.Finalizers, metav1.FinalizerOrphanDependents) && !slices.Contains(f, metav1.FinalizerOrphanDependents) {
			w.orphaned(m)
		}
		m.Finalizers = slices.Clone(f)
	}
	w.wrote(m)
	return nil
}

// forget looks at the references that are taken away: none is to an owner that stays, and is not being orphaned.
func (w *world) forget(m *metav1.PartialObjectMetadata, left []metav1.OwnerReference) {
	for _, r := range m.OwnerReferences {
		if slices.ContainsFunc(left, func(l metav1.OwnerReference) bool { return l.UID == r.UID }) {
			continue
		}
		o := w.objects[r.UID]
		if o != nil && o.DeletionTimestamp == nil && w.state(m, r) == solid {
			w.violation("%s forgets its owner %s", m.UID, r.UID)
		}
	}
}

// orphaned looks at the dependents of an object that is let go: each that was told of has forgotten it.
func (w *world) orphaned(m *metav1.PartialObjectMetadata) {
	for _, d := range w.objects {
		version, _ := strconv.ParseUint(d.ResourceVersion, 10, 64)
		if w.heard[d.UID] == version && slices.ContainsFunc(d.OwnerReferences, func(r metav1.OwnerReference) bool { return r.UID == m.UID }) {
			w.violation("%s is let go, and %s still refers to it", m.UID, d.UID)
		}
	}
}

func (w *world) remove(_ context.Context, t thing, version string, policy metav1.DeletionPropagation) error {
	m, err := w.exact(t, version)
	if m == nil {
		return err
	}
	if len(m.OwnerReferences) == 0 {
		w.violation("%s is deleted, and never had an owner", m.UID)
	}
	for _, r := range m.OwnerReferences {
		if s := w.state(m, r); s == solid || s == refused {
			w.violation("%s is deleted, and has its owner %s", m.UID, r.UID)
		}
	}
	w.end(m, policy)
	return nil
}

// What a reference is to, by the truth.
const (
	gone = iota
	solid
	waits
	refused
)

func (w *world) state(m *metav1.PartialObjectMetadata, r metav1.OwnerReference) int {
	namespaced := r.Kind != "Wide"
	if namespaced && m.Namespace == "" {
		return refused
	}
	o := w.objects[r.UID]
	if o == nil || o.Name != r.Name || w.kinds[o.UID].Value().Kind != r.Kind || namespaced && o.Namespace != m.Namespace {
		return gone
	}
	if o.DeletionTimestamp != nil && slices.Contains(o.Finalizers, metav1.FinalizerDeleteDependents) {
		return waits
	}
	return solid
}

// settled says what of the truth is not as it has to be when all is done.
func (w *world) settled() {
	for _, m := range w.objects {
		states := map[int]int{}
		for _, r := range m.OwnerReferences {
			states[w.state(m, r)]++
		}
		switch {
		case m.DeletionTimestamp == nil && states[refused] == 0 && states[gone]+states[waits] > 0:
			w.violation("%s stays with %v: %v", m.UID, states, m.OwnerReferences)
		case m.DeletionTimestamp == nil:
		case slices.Contains(m.Finalizers, metav1.FinalizerOrphanDependents):
			w.violation("%s is not let go to orphan", m.UID)
		case slices.Contains(m.Finalizers, metav1.FinalizerDeleteDependents) && !w.kept(m, map[types.UID]bool{}):
			w.violation("%s waits for nobody", m.UID)
		}
	}
}

// kept says whether something that nobody here may end keeps an object.
func (w *world) kept(m *metav1.PartialObjectMetadata, seen map[types.UID]bool) bool {
	seen[m.UID] = true
	for _, d := range w.objects {
		if seen[d.UID] || !slices.ContainsFunc(d.OwnerReferences, func(r metav1.OwnerReference) bool { return r.UID == m.UID && *r.BlockOwnerDeletion }) {
			continue
		}
		stays := slices.Contains(d.Finalizers, foreign) || slices.ContainsFunc(d.OwnerReferences, func(r metav1.OwnerReference) bool { return w.state(d, r) == refused })
		if stays || w.kept(d, seen) {
			return true
		}
	}
	return false
}
