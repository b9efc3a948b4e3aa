package apiserver

import (
	"context"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/source/apiserver/kept"
)

// Store keeps what is desired over the machine's end.
type Store interface {
	// Load has what was kept when the node was there last.
	Load() []kept.Pod
	// Save has these pods be kept, and no others. It does not wait: done is called, and must not wait, when they are,
	// or cannot be for now.
	Save(pods []kept.Pod, done func())
	// Run does the keeping, until ctx ends.
	Run(ctx context.Context)
}

// saveAfter is how long after a change that no pod waits for everything is handed to the store: objects come in
// numbers.
const saveAfter = 500 * time.Millisecond

// keeping is when something is kept, or what was kept counts. The zero value keeps nothing.
//
// A pod is kept before it is told of, so that none runs that a boot without the server does not know. That it is to end
// is kept before that is told, too: once it has ended, another one may be in its place on another node. One save is on
// its way at a time, and what comes meanwhile goes with the next.
type keeping struct {
	store  Store
	absent *time.Timer // rings when the server has not answered at the start
	later  *time.Timer // when what has changed is to be handed over at the latest
	limit  *time.Timer // of the pods that wait to be kept
	saved  chan struct{}

	due    bool                               // something may be another now
	soon   bool                               // and is not to wait
	held   map[types.NamespacedName]*podState // wait to be kept
	saving map[*podState]recorded             // of them those in the save on its way; nil: there is none
	said   bool                               // that the disk hangs
}

// recorded is what is kept of a pod that has to be so before the pod is told of.
type recorded int

const (
	notYet    recorded = iota
	asPod              // it starts again
	asEnding           // it does not, since it is to end
	noMatters          // it does not anyway
)

// wanted is what is to be kept of a pod.
func wanted(pod *corev1.Pod) recorded {
	switch {
	case toBeKept(pod):
		return asPod
	case pod.DeletionTimestamp != nil && !terminal(pod) && !desired.IsMirror(pod):
		return asEnding
	}
	return noMatters
}

// keep begins to keep what is desired, if anything does. What it returns ends that, with all of it kept.
func (s *Source) keep(ctx context.Context) (end func()) {
	k := s.cfg.Keep
	if k == nil {
		return func() {}
	}
	s.keeping = keeping{
		store: k, absent: time.NewTimer(s.cfg.pace.absent), later: time.NewTimer(time.Hour), limit: time.NewTimer(time.Hour),
		saved: make(chan struct{}, 1), held: map[types.NamespacedName]*podState{},
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.wait.Go(func() { k.Run(ctx) })
	return func() {
		s.keeping.absent.Stop()
		s.keeping.later.Stop()
		s.keeping.limit.Stop()
		if s.keeping.due {
			k.Save(s.toKeep(), nil)
		}
		cancel()
	}
}

// alarms are those of all of it.
func (k *keeping) alarms() (absent, later, limit <-chan time.Time) {
	if k.store == nil {
		return nil, nil, nil
	}
	return k.absent.C, k.later.C, k.limit.C
}

// holds says whether a pod is not to be told of yet, because it is not kept as what it is.
func (s *Source) holds(st *podState) bool {
	k, as := &s.keeping, wanted(st.pod)
	if k.store == nil || as == st.recorded || as == noMatters {
		return false
	}
	if len(k.held) == 0 {
		k.limit.Reset(s.cfg.pace.keep)
	}
	k.held[st.key] = st
	delete(s.waiting.pods, st.key)
	return true
}

// changed notes that something may be another now. What was kept stays until the server has said what there is.
func (s *Source) changed() {
	k := &s.keeping
	if k.store == nil || !s.listed {
		return
	}
	if !k.due {
		k.due = true
		k.later.Reset(saveAfter)
	}
	if k.saving == nil && (k.soon || len(k.held) > 0) {
		s.save()
	}
}

// urgent has what has changed be kept at once: a pod that is to end must not run with the next boot.
func (s *Source) urgent() { s.keeping.soon = true }

// save hands everything to the store.
func (s *Source) save() {
	k := &s.keeping
	if k.saving != nil {
		return // and it is due when that is done
	}
	k.due, k.soon = false, false
	k.saving = make(map[*podState]recorded, len(k.held))
	for _, st := range k.held {
		k.saving[st] = wanted(st.pod)
	}
	saved := k.saved
	k.store.Save(s.toKeep(), func() { saved <- struct{}{} })
}

// wasSaved tells of the pods that are kept now.
func (s *Source) wasSaved() {
	k := &s.keeping
	done := k.saving
	k.saving = nil
	for st, as := range done {
		s.release(st, as)
	}
	if k.soon || len(k.held) > 0 {
		k.limit.Reset(s.cfg.pace.keep)
		s.save()
	} else if k.due {
		k.later.Reset(saveAfter)
	}
}

// release tells of a pod that waits to be kept so, if it still does.
func (s *Source) release(st *podState, as recorded) {
	st.recorded = as
	if s.keeping.held[st.key] == st && wanted(st.pod) == as {
		delete(s.keeping.held, st.key)
		s.offer(st)
	}
}

// unkept tells of the pods that have waited long enough.
func (s *Source) unkept() {
	k := &s.keeping
	if len(k.held) > 0 && !k.said {
		k.said = true
		s.log.Warn("pods start or end before that is kept for a start without the API server: the disk takes too long",
			"pods", len(k.held))
	}
	for _, st := range maps.Clone(k.held) {
		s.release(st, wanted(st.pod))
	}
}

// toBeKept says whether a pod is to be started again by a boot without the server: nothing that has ended, or is to.
func toBeKept(pod *corev1.Pod) bool {
	return !desired.IsMirror(pod) && !terminal(pod) && pod.DeletionTimestamp == nil
}

// toKeep is everything that is kept.
func (s *Source) toKeep() []kept.Pod {
	var pods []kept.Pod
	services := s.objects.byNamespace(object.Service)
	for _, st := range s.pods {
		if toBeKept(st.pod) {
			pods = append(pods, kept.Pod{Pod: st.pod, Objects: s.objects.of(st, services)})
		}
	}
	return pods
}

// of are the objects that a pod refers to, directly or not. Of Services those are kept that its containers are told of.
func (os *objects) of(st *podState, services map[string][]object.Object) []object.Object {
	var out []object.Object
	for ref := range st.refs {
		e := os.entries[ref]
		if e.object != nil {
			out = append(out, e.object)
		}
		if ref.Kind == object.Service {
			out = append(out, services[st.key.Namespace]...)
			if st.key.Namespace != corev1.NamespaceDefault {
				out = append(out, services[corev1.NamespaceDefault]...)
			}
			continue
		}
		for _, o := range e.all {
			out = append(out, o)
		}
	}
	return out
}

// byNamespace are all objects of a kind that is followed as a whole.
func (os *objects) byNamespace(k object.Kind) map[string][]object.Object {
	out := map[string][]object.Object{}
	if e := os.entries[object.Ref{Kind: k}]; e != nil {
		for ref, o := range e.all {
			out[ref.Namespace] = append(out[ref.Namespace], o)
		}
	}
	return out
}

// fromKept has the pods that were kept be desired, as long as the server has not said what there is.
func (s *Source) fromKept() {
	if s.listed {
		return
	}
	pods := s.keeping.store.Load()
	if len(pods) == 0 {
		return
	}
	s.log.Warn("API server does not answer, and the pods that were kept on the node start", "pods", len(pods))
	s.objects.kept = map[object.Ref]object.Object{}
	for _, p := range pods {
		for _, o := range p.Objects {
			k := object.Kind(o.GetObjectKind().GroupVersionKind().Kind)
			s.objects.kept[object.RefTo(k, o.GetNamespace(), o.GetName())] = o
		}
	}
	for _, p := range pods {
		key := types.NamespacedName{Namespace: p.Pod.Namespace, Name: p.Pod.Name}
		if err := s.ours(key, p.Pod); err != nil || s.pods[key] != nil {
			continue
		}
		p.Pod.APIVersion, p.Pod.Kind = "v1", "Pod"
		st := &podState{key: key, pod: p.Pod, first: time.Now().Format(time.RFC3339Nano), kept: true, recorded: asPod}
		s.pods[key], s.names[p.Pod.UID] = st, key
		// A claim leads to its volume, that to its driver, and both to an attachment.
		for before := -1; before != len(st.refs); {
			before = len(st.refs)
			s.hold(st, s.objects.needs(p.Pod))
		}
		clear(st.lacks)
		s.offer(st)
	}
	s.objects.kept = nil
}

// fill has an entry be what was kept of it, while that counts.
func (os *objects) fill(e *entry) {
	if os.kept == nil {
		return
	}
	put := func(ref object.Ref, o object.Object) {
		os.s.queue.put(desired.Update{Kind: ref.Kind, Key: ref.NamespacedName, Object: o}, versionOf(o))
	}
	if e.ref.Name != "" {
		if o := os.kept[e.ref]; o != nil {
			e.object, e.answered = o, true
			put(e.ref, o)
		}
		return
	}
	e.all, e.answered = map[object.Ref]object.Object{}, true
	for ref, o := range os.kept {
		if ref.Kind == e.ref.Kind {
			e.all[ref] = o
			put(ref, o)
		}
	}
	os.s.queue.all(e.ref.Kind)
}
